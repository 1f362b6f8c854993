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
    """Finds a file of a repository.

    Args:
        where: Its name on the hub, or a directory.
        name: The file's name in it.
        revision: Commit, branch or tag of a hub repository; None is its default.

    Returns:
        The file on this machine; None where the repository has no such file.

    Raises:
        OSError: The hub does not answer, and no cache has the file.
    """
    found = cached_file(where, name, revision=revision, _raise_exceptions_for_missing_entries=False)
    return Path(found) if found else None


def backend_of(tokenizer: PreTrainedTokenizerBase) -> Tokenizer | None:
    """Returns the tokenizer of the library `tokenizers` inside; None for one that is written in Python only."""
    return getattr(tokenizer, "backend_tokenizer", None)
