"""Calls that are JSON."""

import pytest

from rolloutpool_common.rendering.parsing.found import decode, usable_name


def test_names() -> None:
    assert usable_name("x" * 256)
    assert not any(map(usable_name, ["", "x" * 257, "\ud800", None, 5]))


def test_json_that_is_nested_too_deeply_is_an_error_like_any_other() -> None:
    with pytest.raises(ValueError, match="nested"):
        decode("[" * 100_000)
