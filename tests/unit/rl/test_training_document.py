"""The blocks of docs/training.md give what the document says."""

import doctest
from pathlib import Path


def test_the_document_is_true() -> None:
    path = Path(__file__).parents[3] / "docs" / "training.md"
    failed, tried = doctest.testfile(str(path), module_relative=False, encoding="utf-8")
    assert tried > 15
    assert failed == 0
