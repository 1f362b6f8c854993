"""Small template families, one for each construct of strangers' templates that was once rendered wrong.

Each is a chat template over the tiny tokenizer, with what is known about it by hand: the strings that end an answer and
a turn with calls.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.support.tiny_tokenizers import write_tokenizer
from tokenizers import Tokenizer

LOOP = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
GENERATION = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"


@dataclass(frozen=True)
class Family:
    """A template with its control strings and ends."""

    template: str
    special: tuple[str, ...] = ()
    eos: str = "<|im_end|>"
    answer_ends: tuple[str, ...] = ("<|im_end|>",)
    call_ends: tuple[str, ...] = ("<|im_end|>",)
    call: str = "<tool_call>{}</tool_call>"
    """How a policy of this family writes a call, around its arguments."""
    needs_tools: bool = False
    """Whether it can be rendered only with tools."""
    stop: str | None = None
    """A stop token that only the model's generation_config.json names."""


FAMILIES = {
    "ends_twice": Family(
        "{% for m in messages %}"
        "{{ '<|turn|>' + m.role + '<|text|>' + m.content + '<|end_text|><|end_turn|>' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|turn|>assistant<|text|>' }}{% endif %}",
        ("<|turn|>", "<|text|>", "<|end_text|>", "<|end_turn|>"),
        eos="<|endoftext|>",
        answer_ends=("<|end_turn|>",),
        call_ends=("<|end_turn|>",),
    ),
    "no_think": Family(
        "{% set quiet = messages[0].role == 'system' and '/no_think' in messages[0].content %}"
        + LOOP
        + GENERATION
        + "{% if add_generation_prompt %}{{ '<think></think>' if quiet else '<think>\n' }}{% endif %}"
    ),
    "rounds": Family(
        "{% set ns = namespace(n=0) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.n = ns.n + 1 %}"
        "{{ '[Round ' ~ ns.n ~ ']' }}{% endif %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
        "{% endfor %}" + GENERATION
    ),
    "counted_results": Family(
        "{% set ns = namespace(n=0) %}{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
        "{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}{% endfor %}"
        "{% if m.role == 'tool' %}{{ '{\"id\": ' ~ ns.n ~ '}' }}{% set ns.n = ns.n + 1 %}{% endif %}"
        "{{ m.content + '<|im_end|>\n' }}{% endfor %}" + GENERATION
    ),
    "wrapped_with_tools": Family(
        "{% for t in tools or [] %}{{ t.function.name + '\n' }}{% endfor %}"
        + LOOP.replace("m.content", "('<tool_response>' + m.content if tools and m.role == 'tool' else m.content)")
        + GENERATION
    ),
    "plain_headers": Family(
        "{% for m in messages %}{{ '### ' + m.role + ':\n' + m.content }}"
        "{{ eos_token + '\n\n' if m.role == 'assistant' else '\n\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '### assistant:\n' }}{% endif %}",
        eos="<|endoftext|>",
        answer_ends=("<|endoftext|>",),
        call_ends=("<|endoftext|>",),
    ),
    "built_headers": Family(
        "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content + '<|im_end|>' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}",
        ("<|system|>", "<|user|>", "<|assistant|>", "<|tool|>"),
    ),
    "call_markup": Family(
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
        "{% for c in m.tool_calls or [] %}{{ '[' + c.function.arguments | tojson + ']' + '<|call_end|>' }}{% endfor %}"
        "{{ m.content + '<|im_end|>\n' }}{% endfor %}" + GENERATION,
        ("<|call_end|>",),
        call="[{}]<|call_end|>",
    ),
    "other_stop": Family(LOOP + GENERATION, ("<|stop|>",), stop="<|stop|>"),
    "needs_tools": Family(
        "{% for t in tools %}{{ t.function.name }}{% endfor %}" + LOOP + GENERATION, needs_tools=True
    ),
    "working_outputs": Family(
        "{% for m in messages %}{% if m.role == 'user' %}{{ '<\uff5cUser\uff5c>' + m.content }}"
        "{% elif m.role == 'assistant' %}"
        "{{ '<\uff5cAssistant\uff5c>' + m.content + '<\uff5cend▁of▁sentence\uff5c>' }}"
        "{% elif m.role == 'system' %}{{ m.content }}{% else %}"
        "{{ '<\uff5ctool▁outputs▁begin\uff5c><\uff5ctool▁output▁begin\uff5c>' + m.content }}"
        "{{ '<\uff5ctool▁output▁end\uff5c><\uff5ctool▁outputs▁end\uff5c>' }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<\uff5cAssistant\uff5c><think>\n' }}{% endif %}",
        tuple(
            f"<\uff5c{name}\uff5c>"
            for name in (
                "User",
                "Assistant",
                "tool▁outputs▁begin",
                "tool▁outputs▁end",
                "tool▁output▁begin",
                "tool▁output▁end",
                "end▁of▁sentence",
            )
        ),
        eos="<\uff5cend▁of▁sentence\uff5c>",
        answer_ends=("<\uff5cend▁of▁sentence\uff5c>",),
        call_ends=("<\uff5cend▁of▁sentence\uff5c>",),
    ),
    "quotes_text": Family(  # as Qwen2.5's: arguments that are text become JSON text
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content }}"
        "{% for c in m.tool_calls or [] %}"
        "{{ '<tool_call>' + (c.function.arguments | tojson) + '</tool_call>' }}{% endfor %}"
        "{{ '<|im_end|>\n' }}{% endfor %}" + GENERATION
    ),
    "wants_objects": Family(  # as Qwen3-Coder's: text has no items
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content }}"
        "{% for c in m.tool_calls or [] %}{{ '<tool_call>' }}{% for k, v in c.function.arguments | items %}"
        "{{ '{\"' ~ k ~ '\":\"' ~ v ~ '\"}' }}{% endfor %}{{ '</tool_call>' }}{% endfor %}{{ '<|im_end|>\n' }}"
        "{% endfor %}" + GENERATION
    ),
    "drops_thinking": Family(  # as Qwen3's: thinking before the last question is dropped
        "{% set ns = namespace(last=0) %}"
        "{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
        "{{ m.content.split('</think>')[-1] if m.role == 'assistant' and loop.index0 < ns.last else m.content }}"
        "{% for c in m.tool_calls or [] %}"
        "{{ '<tool_call>' + (c.function.arguments | tojson) + '</tool_call>' }}{% endfor %}"
        "{{ '<|im_end|>\n' }}{% endfor %}" + GENERATION
    ),
    "merged_results": Family(  # as Qwen3's: results that follow each other share a turn
        "{% for m in messages %}{% if m.role == 'tool' %}"
        "{{ '<|im_start|>user' if loop.first or loop.previtem.role != 'tool' else '' }}"
        "{{ '\n<tool_response>' + m.content + '</tool_response>' }}"
        "{{ '<|im_end|>\n' if loop.last or loop.nextitem.role != 'tool' else '' }}"
        "{% else %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endif %}{% endfor %}"
        + GENERATION
    ),
}


def lay_out(folder: Path, families: Mapping[str, Family] | None = None) -> Iterator[tuple[str, Path]]:
    """Writes families, ours by default, below a folder; yields the name and directory of each."""
    for name, family in (families or FAMILIES).items():
        directory = folder / name
        directory.mkdir(parents=True, exist_ok=True)
        write_tokenizer(directory, family.template, family.special, family.eos)
        if family.stop is not None:
            stop = Tokenizer.from_file(str(directory / "tokenizer.json")).token_to_id(family.stop)
            (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [stop]}), encoding="utf-8")
        yield f"family:{name}", directory
