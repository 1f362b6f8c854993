"""Tokenizers by the libraries `tokenizers` and `transformers` alone, as oracles and trainers of others read them.

A vocabulary takes up to 1.5 s to read, so the last few are kept and what differs only in its steps shares the model.
"""

from functools import lru_cache
from pathlib import Path

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast


def whole(directory: Path) -> Tokenizer:
    """The tokenizer of a directory whose files stay as they are, without truncation. Nobody may change it."""
    return _read((directory / "tokenizer.json").resolve())


@lru_cache(maxsize=4)
def _read(file: Path) -> Tokenizer:
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def without_added_tokens(tokenizer: Tokenizer) -> Tokenizer:
    """One that takes control strings as any text."""
    return with_steps_of(tokenizer, Tokenizer(tokenizer.model))


def with_steps_of(tokenizer: Tokenizer, other: Tokenizer) -> Tokenizer:
    """The other one, with what is done to text before its model sees it."""
    if tokenizer.normalizer is not None:
        other.normalizer = tokenizer.normalizer
    if tokenizer.pre_tokenizer is not None:
        other.pre_tokenizer = tokenizer.pre_tokenizer
    return other


@lru_cache(maxsize=4)
def chat(directory: Path) -> PreTrainedTokenizerFast:
    """The generic class of transformers on the same files."""
    loaded: PreTrainedTokenizerFast = PreTrainedTokenizerFast.from_pretrained(directory)
    return loaded
