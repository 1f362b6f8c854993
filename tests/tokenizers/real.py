"""Real tokenizers for tests: present after `make tokenizers`, else the test is skipped.

With ROLLOUTPOOL_REQUIRE_TOKENIZERS=1 a missing one fails the test instead, so that CI cannot pass without them.
"""

import os
from functools import cache
from pathlib import Path

import pytest
from tests.tokenizers.layout import BUILD, SHA256

from rolloutpool_common.rendering import ChatTokenizer, load_tokenizer

__all__ = ["REAL_NAMES", "real_tokenizer"]

REAL_NAMES = sorted(SHA256)

# Read at import: tests run with the project's variables removed from the environment.
_REQUIRED = os.environ.get("ROLLOUTPOOL_REQUIRE_TOKENIZERS") == "1"


def real_tokenizer(name: str) -> ChatTokenizer:
    """The tokenizer, loaded once per test process."""
    if not (BUILD / name / "tokenizer.json").is_file():
        reason = f"tokenizer {name} is not laid out; run `make tokenizers`"
        if _REQUIRED:
            pytest.fail(reason)
        pytest.skip(reason)
    return _load(BUILD / name)


@cache
def _load(directory: Path) -> ChatTokenizer:
    return load_tokenizer(str(directory))
