"""The internals of transformers that `transformers_compat` uses still work; a failure here names what changed."""

from pathlib import Path

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from rolloutpool_common.rendering.transformers_compat import backend_of, repository_file
from rolloutpool_common.testing import TINY_TOKENIZER


def test_a_directorys_tokenizer_json_is_found(tmp_path: Path) -> None:
    assert repository_file(str(TINY_TOKENIZER), "tokenizer.json", None) == TINY_TOKENIZER / "tokenizer.json"


def test_a_directory_without_one_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text("{}")
    assert repository_file(str(tmp_path), "tokenizer.json", None) is None


def test_a_fast_tokenizer_has_a_backend() -> None:
    assert isinstance(backend_of(PreTrainedTokenizerFast.from_pretrained(TINY_TOKENIZER)), Tokenizer)
