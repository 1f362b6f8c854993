"""The tiny tokenizer, and copies of it with other templates and control tokens."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.support.tiny_tokenizers import MakeTokenizer, write_tokenizer

from rolloutpool_common.rendering import ChatTokenizer, load_tokenizer


@pytest.fixture
def make_tokenizer(tmp_path: Path) -> MakeTokenizer:
    """Load the tiny tokenizer with another template and further special tokens."""

    def make(
        template: str | dict[str, str] | None, special: Sequence[str] = (), eos: str = "<|im_end|>"
    ) -> ChatTokenizer:
        write_tokenizer(tmp_path, template, special, eos)
        return load_tokenizer(str(tmp_path))

    return make
