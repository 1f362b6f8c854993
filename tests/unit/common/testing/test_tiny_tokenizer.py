"""The committed tokenizer is what its script makes, and every loader reads the same ids from it."""

import hashlib
import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import transformers
from tokenizers import Tokenizer

from rolloutpool_common.testing import TINY_TOKENIZER

FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
SCRIPT = Path(__file__).parents[4] / "scripts" / "train_tiny_tokenizer.py"

CALL = {"name": "add", "arguments": {"a": 15, "b": 23}}
TOOLS = [{"type": "function", "function": {"name": "add", "description": "Add two numbers", "parameters": {}}}]
CONVERSATION: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Calculate 15 + 23"},
    {"role": "assistant", "content": None, "tool_calls": [{"id": "c0", "type": "function", "function": CALL}]},
    {"role": "tool", "content": "38", "tool_call_id": "c0"},
    {"role": "assistant", "content": "The result is 38.", "reasoning_content": "Only report it."},
    {"role": "user", "content": "Thanks"},
    {"role": "assistant", "content": "You're welcome."},
]


def load_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("train_tiny_tokenizer", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def auto(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return transformers.AutoTokenizer.from_pretrained(TINY_TOKENIZER, trust_remote_code=False)


def render(auto: Any, messages: list[dict[str, Any]], **kwargs: Any) -> str:
    text = auto.apply_chat_template(messages, tokenize=False, **kwargs)
    assert isinstance(text, str)
    return text


def test_script_reproduces_the_committed_files(tmp_path: Path) -> None:
    load_script().write(tmp_path)
    assert {name: sha256(tmp_path / name) for name in FILES} == {name: sha256(TINY_TOKENIZER / name) for name in FILES}
    assert sorted(path.name for path in TINY_TOKENIZER.iterdir()) == sorted(FILES)


def test_auto_tokenizer_gives_the_ids_of_the_file(auto: Any) -> None:
    plain = Tokenizer.from_file(str(TINY_TOKENIZER / "tokenizer.json"))
    markup = json.loads((TINY_TOKENIZER / "tokenizer.json").read_text())["added_tokens"]
    texts = [
        "Calculate (15 + 23) * 4",
        "1234567890",
        "Zürich, naïve, 東京, 😀, \r\n\t  x\x00\x7f",
        render(auto, CONVERSATION, tools=TOOLS),
        *(token["content"] for token in markup),
    ]
    for text in texts:
        ids = plain.encode(text, add_special_tokens=False).ids
        assert auto.encode(text, add_special_tokens=False) == ids
        assert plain.decode(ids, skip_special_tokens=False) == text
        assert auto.decode(ids, skip_special_tokens=False) == text


def test_vocabulary(auto: Any) -> None:
    assert len(auto) == 4096
    assert auto.eos_token == "<|im_end|>"
    assert auto.pad_token == "<|endoftext|>"
    assert len(auto.encode("2025", add_special_tokens=False)) == 4
    added = auto.added_tokens_decoder.values()
    assert sum(token.special for token in added) == 3
    assert sum(not token.special for token in added) == 8


def test_template_is_append_only(auto: Any) -> None:
    whole = render(auto, CONVERSATION, tools=TOOLS)
    for end, message in enumerate(CONVERSATION):
        if end == 0:
            continue
        prompt = message["role"] == "assistant"
        assert whole.startswith(render(auto, CONVERSATION[:end], tools=TOOLS, add_generation_prompt=prompt))


def test_generation_spans_are_what_the_policy_samples(auto: Any) -> None:
    both = auto.apply_chat_template(
        CONVERSATION, tools=TOOLS, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
    )
    pieces = [
        auto.decode([token], skip_special_tokens=False) if mask else "\0"
        for token, mask in zip(both["input_ids"], both["assistant_masks"], strict=True)
    ]
    spans = [span for span in "".join(pieces).split("\0") if span]
    assert spans == [
        '<tool_call>\n{"name": "add", "arguments": {"a": 15, "b": 23}}\n</tool_call><|im_end|>',
        "<think>\nOnly report it.\n</think>\n\nThe result is 38.<|im_end|>",
        "You're welcome.<|im_end|>",
    ]
