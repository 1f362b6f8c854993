"""What rendering uses of transformers beyond its documented interface, so that an upgrade breaks this file alone.

- `cached_file(..., _raise_exceptions_for_missing_entries=False)`: finds a file of a repository in the local cache, a
  directory or the hub, by the same rules as transformers itself, and returns None where the repository lacks it.
- `tokenizer.backend_tokenizer`: the `tokenizers.Tokenizer` inside; a tokenizer in pure Python has none.

`test_transformers_compat.py` runs both against the installed transformers.
"""

from pathlib import Path

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase
from transformers.utils.hub import cached_file

__all__ = ["backend_of", "repository_file"]


def repository_file(where: str, name: str, revision: str | None) -> Path | None:
    """Finds a file of a hub name or a directory; None where there is none. Raises OSError where the hub is away."""
    found = cached_file(where, name, revision=revision, _raise_exceptions_for_missing_entries=False)
    return Path(found) if found else None


def backend_of(tokenizer: PreTrainedTokenizerBase) -> Tokenizer | None:
    """Returns the tokenizer of the library `tokenizers` inside; None for one that is written in Python only."""
    return getattr(tokenizer, "backend_tokenizer", None)
