"""Real tokenizers for tests: present after `make tokenizers`, else the test is skipped.

With ROLLOUTPOOL_REQUIRE_TOKENIZERS=1 a missing one fails the test instead, so that CI cannot pass without them.
"""

import os
from pathlib import Path

import pytest
from tests.tokenizers.layout import BUILD, SHA256, TEMPLATE_BUILD, TEMPLATES

from rolloutpool_common.rendering import ChatTokenizer, TokenizerCache

REAL_NAMES = sorted(SHA256.keys() - {"yi"})  # that one has no chat template
TEMPLATE_NAMES = sorted(f"template:{name}" for name in TEMPLATES)
"""Templates of further families over the tiny tokenizer."""

# Read at import: tests run with the project's variables removed from the environment.
_REQUIRED = os.environ.get("ROLLOUTPOOL_REQUIRE_TOKENIZERS") == "1"


def real_directory(name: str) -> Path:
    """Where the tokenizer lies; skips the test if it does not."""
    directory = TEMPLATE_BUILD / name.removeprefix("template:") if name.startswith("template:") else BUILD / name
    if not (directory / "tokenizer.json").is_file():
        reason = f"tokenizer {name} is not laid out; run `make tokenizers`"
        if _REQUIRED:
            pytest.fail(reason)
        pytest.skip(reason)
    return directory


LOADED = TokenizerCache(16)
"""For all tests of this process and the workers inside it: loading a real one takes seconds."""


def real_tokenizer(name: str) -> ChatTokenizer:
    """The tokenizer, loaded once per test process."""
    return LOADED.load(str(real_directory(name)))
