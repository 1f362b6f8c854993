"""The tiny tokenizer, and copies of it with other templates and control tokens."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from rolloutpool_common.rendering import TINY, ChatTokenizer, load_tokenizer
from rolloutpool_common.testing import TINY_TOKENIZER

MakeTokenizer = Callable[..., ChatTokenizer]


@pytest.fixture(scope="session")
def tiny() -> ChatTokenizer:
    return load_tokenizer(TINY)


@pytest.fixture
def make_tokenizer(tmp_path: Path) -> MakeTokenizer:
    """Load the tiny tokenizer with another template and further special tokens."""

    def make(
        template: str | dict[str, str] | None, special: Sequence[str] = (), eos: str = "<|im_end|>"
    ) -> ChatTokenizer:
        write_tokenizer(tmp_path, template, special, eos)
        return load_tokenizer(str(tmp_path))

    return make


def write_tokenizer(
    directory: Path, template: str | dict[str, str] | None, special: Sequence[str] = (), eos: str = "<|im_end|>"
) -> None:
    tokenizer = json.loads((TINY_TOKENIZER / "tokenizer.json").read_text(encoding="utf-8"))
    model = next(token for token in tokenizer["added_tokens"] if token["special"])
    first = max(token["id"] for token in tokenizer["added_tokens"]) + 1
    tokenizer["added_tokens"] += [{**model, "id": first + i, "content": text} for i, text in enumerate(special)]
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    config = json.loads((TINY_TOKENIZER / "tokenizer_config.json").read_text(encoding="utf-8"))
    config["eos_token"] = eos
    if isinstance(template, dict):
        config["chat_template"] = [{"name": name, "template": text} for name, text in template.items()]
    elif template is not None:
        config["chat_template"] = template
    (directory / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
