"""Ids of a vocabulary as text: bytes are joined before they are decoded."""

import pytest

from rolloutpool_common.protocol.token_pieces import TokenPieces

PIECES = TokenPieces(
    tokenizer_sha256="ab" * 32, pieces=["Hi", " \u6f22", None, None, None, ""], partial={2: "e5ad", 3: "97"}
)


@pytest.mark.parametrize(
    ("ids", "text"),
    [
        ([], ""),
        ([0, 1], "Hi \u6f22"),
        ([0, 2, 3, 5], "Hi\u5b57"),
        ([2, 0], "\ufffdHi"),
        ([4], "\ufffd"),
        ([99, 0], "\ufffdHi"),
        ([-1], "\ufffd"),
    ],
)
def test_parts_of_a_character_are_joined(ids: list[int], text: str) -> None:
    assert PIECES.read(ids) == text
    assert TokenPieces.model_validate_json(PIECES.model_dump_json()).read(ids) == text
