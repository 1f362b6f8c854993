"""Template families in which a turn's own words, its number of calls or a later message decide what stands behind it.

With them: small tokenizers of other kinds than bytes, because text that continues a turn is encoded otherwise there.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.property.families import GENERATION, LOOP, Family

_CALLS = "{% for c in m.tool_calls or [] %}{{ '[' + c.function.arguments | tojson + ']' }}{% endfor %}"
_PLAIN = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content }}" + _CALLS
_TURN = ("<|turn>", "<turn|>", "<|call>", "<call|>", "<|response>", "<response|>")
ODD = {
    "thought_aloud": Family(  # a header says whether the turn before it held thinking, by its own words
        _PLAIN + "{{ '<|im_end|>\n' }}{{ '<|thought|>\n' if m.role == 'assistant' and '</think>' in m.content }}"
        "{% endfor %}" + GENERATION,
        ("<|thought|>",),
    ),
    "asks_back": Family(  # a question and an answer end with other tokens
        _PLAIN + "{{ '<|asked|>' if m.role == 'assistant' and m.content.endswith('?') else '<|im_end|>' }}"
        "{{ '\n' }}{% endfor %}" + GENERATION,
        ("<|asked|>",),
        answer_ends=("<|asked|>", "<|im_end|>"),
        call_ends=("<|asked|>", "<|im_end|>"),
    ),
    "many_calls": Family(  # the number of calls decides how the turn ends
        _PLAIN + "{{ '<|calls_end|>' if m.tool_calls and m.tool_calls | length > 1 else '<|im_end|>' }}{{ '\n' }}"
        "{% endfor %}" + GENERATION,
        ("<|calls_end|>",),
        call_ends=("<|calls_end|>", "<|im_end|>"),
        stop="<|calls_end|>",
    ),
    "system_moves": Family(  # as Mistral's: the system message stands in the last question
        "{% set said = messages[0].content if messages[0].role == 'system' else '' %}"
        "{% for m in messages %}"
        "{% if m.role == 'system' %}{% if not loop.first %}{{ raise_exception('late') }}{% endif %}"
        "{% else %}{{ '<|im_start|>' + m.role + '\n' }}"
        "{{ said + '\n\n' if loop.last and m.role == 'user' and said else '' }}{{ m.content }}"
        + _CALLS
        + "{{ '<|im_end|>\n' }}{% endif %}{% endfor %}"
        + GENERATION
    ),
    "tools_move": Family(  # the tools stand in front of the last question
        "{% set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == 'user' %}"
        "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}{% for m in messages %}"
        "{{ '<tools>' + tools | tojson + '</tools>' if tools and loop.index0 == ns.last else '' }}"
        "{{ '<|im_start|>' + m.role + '\n' + m.content }}" + _CALLS + "{{ '<|im_end|>\n' }}{% endfor %}" + GENERATION
    ),
    "looks_ahead": Family(  # as Gemma 4's: a turn that calls writes the results that follow, and goes on behind them
        "{% for m in messages %}{% set ahead = loop.index %}"
        "{% if m.role == 'assistant' %}"
        "{{ '<|turn>model\n' if loop.first or loop.previtem.role != 'tool' else '' }}"
        "{{ m.content if not m.tool_calls else '' }}"
        "{% for c in m.tool_calls or [] %}{{ '<|call>' + c.function.arguments | tojson + '<call|>' }}{% endfor %}"
        "{% if m.tool_calls %}{% set ns = namespace(go=true, wrote=false) %}{% for r in messages[ahead:] %}"
        "{% if r.role != 'tool' %}{% set ns.go = false %}{% endif %}"
        "{% if ns.go %}{% set ns.wrote = true %}{{ '<|response>' + r.content + '<response|>' }}{% endif %}{% endfor %}"
        "{{ '<|response>' if not ns.wrote else '' }}"
        "{% else %}{{ '<turn|>\n' }}{% endif %}"
        "{% elif m.role == 'tool' %}"
        "{{ '<turn|>\n' if not loop.last and loop.nextitem.role not in ['tool', 'assistant'] else '' }}"
        "{% else %}{{ '<|turn>' + m.role + '\n' + m.content + '<turn|>\n' }}{% endif %}{% endfor %}"
        "{{ '<|turn>model\n' if add_generation_prompt and messages[-1].role != 'tool' }}",
        _TURN,
        "<turn|>",
        answer_ends=("<turn|>",),
        call_ends=("<|response>",),
        stop="<|response>",
    ),
    "merged_users": Family(  # a system message that comes late is put in front of everything
        "{% for m in messages if m.role == 'system' %}{{ m.content + '\n' }}{% endfor %}"
        + LOOP.replace("in messages", "in messages if m.role != 'system'").replace(
            "+ '<|im_end|>\n' }}", "}}" + _CALLS + "{{ '<|im_end|>\n' }}"
        )
        + GENERATION
    ),
}
_SEPARATED = (
    "{% for m in messages %}{{ '### ' + m.role + ':\n' + m.content }}"
    + _CALLS
    + "{{ '\n\n' }}{% endfor %}{% if add_generation_prompt %}{{ '### assistant:\n' }}{% endif %}"
)
_TAGGED = (
    _PLAIN + "{{ '<|im_end|>' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_WORDS = ("the", "result", "is", "user", "tool", "assistant", "null", "true", "json", "def", "return")


def lay_out_models(folder: Path) -> Iterator[tuple[str, Path, tuple[tuple[str, ...], tuple[str, ...]]]]:
    """Writes tokenizers of other kinds, each under two templates; yields name, directory and ends of turns."""
    separated = (("^\n\n### ",),) * 2
    tagged = (("<|im_end|>",),) * 2
    for kind, model in _MODELS.items():
        for form, template, ends in (("separated", _SEPARATED, separated), ("tagged", _TAGGED, tagged)):
            directory = folder / f"{kind}_{form}"
            directory.mkdir(parents=True, exist_ok=True)
            config = {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "eos_token": "<|im_end|>",
                "chat_template": template,
            }
            (directory / "tokenizer.json").write_text(json.dumps(model), encoding="utf-8")
            (directory / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
            yield f"family:{kind}_{form}", directory, ends


def _file(model: dict[str, Any], size: int, normalizer: Any, pre_tokenizer: Any) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    added = [
        {"id": size + i, "content": t, **flags} for i, t in enumerate(("<|endoftext|>", "<|im_start|>", "<|im_end|>"))
    ]
    decoders = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    return {
        **{"version": "1.0", "truncation": None, "padding": None, "post_processor": None},
        **{"added_tokens": added, "normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "model": model},
        "decoder": {"type": "Sequence", "decoders": decoders},
    }


def _letters() -> list[str]:
    """Bytes, and the letters of which the words are made."""
    return ["<unk>", *(f"<0x{i:02X}>" for i in range(256)), "▁", *map(chr, range(33, 127)), "\n", "é"]


def _pairs(normalizer: Any, pre_tokenizer: Any) -> dict[str, Any]:
    vocabulary = _letters()
    merges: dict[tuple[str, str], None] = {("▁", "▁"): None, ("#", "#"): None, ("##", "#"): None, ("\n", "\n"): None}
    for word in _WORDS:
        for start in ("▁", ""):
            left = (start + word)[0]
            for letter in (start + word)[1:]:
                merges[left, letter] = None
                left += letter
    vocabulary += dict.fromkeys(a + b for a, b in merges)
    model = {
        **{"type": "BPE", "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True},
        "vocab": {piece: i for i, piece in enumerate(vocabulary)},
        "merges": [list(pair) for pair in merges],
    }
    return _file(model, len(vocabulary), normalizer, pre_tokenizer)


def _unigram() -> dict[str, Any]:
    pieces = [*_letters(), *(f"▁{w}" for w in _WORDS), *(w for w in _WORDS if len(w) > 1), "▁▁", "###", "▁###"]
    vocabulary = [[piece, -20.0 if piece.startswith("<0x") else -3.0 - 1.0 / len(piece)] for piece in pieces]
    model = {"type": "Unigram", "unk_id": 0, "vocab": vocabulary, "byte_fallback": True}
    metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    return _file(model, len(pieces), None, metaspace)


def _metaspace(scheme: str) -> dict[str, Any]:
    return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": False}


_PREPENDS = {
    "type": "Sequence",
    "normalizers": [
        {"type": "Prepend", "prepend": "▁"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
    ],
}
_MODELS = {
    "metaspace_first": _pairs(None, _metaspace("first")),
    "metaspace_always": _pairs(None, _metaspace("always")),
    "prepended": _pairs(_PREPENDS, None),
    "unigram": _unigram(),
}
