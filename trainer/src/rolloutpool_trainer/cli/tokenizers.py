"""Tokenizers for commands: loaded without advice about libraries that rolloutpool has no use for."""

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rolloutpool_common.rendering import ChatTokenizer

__all__ = ["load"]


def load(name: str) -> "ChatTokenizer":
    """The tokenizer; takes seconds the first time.

    Raises:
        MissingExtra: The libraries for it are not installed.
        TokenizerLoadFailed: It cannot be loaded.
    """
    # Read once, when transformers is first imported: it misses PyTorch, which models would need.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    try:
        from rolloutpool_common.rendering import load_tokenizer
    except ModuleNotFoundError as error:
        from rolloutpool_trainer.errors import MissingExtra

        extra = "pip install 'rolloutpool-trainer[callback]'"
        raise MissingExtra(f"tokenizers need {error.name}: {extra}") from error
    return load_tokenizer(name)
