"""Copies of the tiny tokenizer with another chat template, other control tokens, or another end of sequence."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rolloutpool_common.testing import TINY_TOKENIZER

if TYPE_CHECKING:  # the oracle of tokens writes tokenizers too, and must not load what it judges
    from rolloutpool_common.rendering import ChatTokenizer

MakeTokenizer = Callable[..., "ChatTokenizer"]
"""The fixture `make_tokenizer`: called with the arguments of `write_tokenizer`, without the directory."""


def write_tokenizer(
    directory: Path, template: str | dict[str, str] | None, special: Sequence[str] = (), eos: str = "<|im_end|>"
) -> None:
    """Writes such a copy.

    Args:
        directory: Where its two files go.
        template: Its chat template, several of them by name, or None to keep the tiny tokenizer's.
        special: Further special tokens; they get the ids after the last one.
        eos: Its end of sequence.
    """
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
