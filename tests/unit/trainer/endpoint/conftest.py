"""The committed tokenizer."""

import pytest

from rolloutpool_common.rendering import ChatTokenizer, load_tokenizer
from rolloutpool_common.testing import TINY_TOKENIZER


@pytest.fixture(scope="session")
def tokenizer() -> ChatTokenizer:
    return load_tokenizer(str(TINY_TOKENIZER))
