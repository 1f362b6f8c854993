"""`GET /v1/tokenizers/{tokenizer_sha256}/pieces`: what each id of a tokenizer reads, for people who look at tokens.

A tokenizer may split a character over several ids. So an id has bytes, and only the bytes of several ids together need
to be text:

    pieces   ["Hi", " \\u6f22", null, null]
    partial  {"2": "e5ad", "3": "97"}            ids 2 and 3 together are one character of three bytes
"""

from collections.abc import Iterable

from pydantic import BaseModel, Field

UNKNOWN = "\ufffd".encode()


class TokenPieces(BaseModel):
    """The vocabulary of one tokenizer. It never changes: another vocabulary has another hash."""

    tokenizer_sha256: str
    """As in a result's `tokenizer`."""
    pieces: list[str | None]
    """The text of each id, from 0 on, as it reads inside a text. Null for an id in `partial`, and for one that the
    tokenizer does not have."""
    partial: dict[int, str] = Field(default_factory=dict)
    """The bytes (hex) of ids whose bytes are no text by themselves."""

    def read(self, ids: Iterable[int]) -> str:
        """Returns the text of some ids; U+FFFD stands for what is no text, and for ids that the tokenizer lacks."""
        return b"".join(map(self.bytes_of, ids)).decode("utf-8", "replace")

    def bytes_of(self, token_id: int) -> bytes:
        """Returns the bytes of an id."""
        if token_id in self.partial:
            return bytes.fromhex(self.partial[token_id])
        piece = self.pieces[token_id] if 0 <= token_id < len(self.pieces) else None
        return UNKNOWN if piece is None else piece.encode("utf-8", "surrogatepass")
