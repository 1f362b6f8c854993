"""Says what each id of a tokenizer reads, for people who look at tokens in a browser, where no tokenizer is.

1. Each id is decoded behind a letter, and the letter is taken off again. Behind nothing, many tokenizers drop the space
   with which a piece begins.
2. Where that gives U+FFFD, the id holds a part of a character. Its bytes are then read from the piece's own spelling:
   byte-level tokenizers write each byte as a letter, SentencePiece writes `<0xE6>`.
"""

import gzip
import re
from collections.abc import Sequence

import orjson

from rolloutpool_common.protocol.token_pieces import TokenPieces
from rolloutpool_common.rendering.codec import Codec
from rolloutpool_common.rendering.tokenizer import ChatTokenizer

AT_ONCE = 2000
"""Ids that are decoded by one call, which lets go of the GIL."""
_LETTER = "a"
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _byte_letters() -> dict[str, int]:
    """Returns which letter stands for which byte in a byte-level vocabulary: itself, or one from U+0100 on."""
    shown = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = (byte for byte in range(256) if byte not in shown)
    return {chr(byte): byte for byte in shown} | {chr(0x100 + place): byte for place, byte in enumerate(hidden)}


_LETTERS = _byte_letters()


def find_pieces(tokenizer: ChatTokenizer) -> TokenPieces:
    """Finds what each id of a tokenizer reads. Takes about a second for 150,000 ids, most of it without the GIL."""
    codec = tokenizer.codec
    before = codec.encode(_LETTER)
    if codec.decode(before) != _LETTER:
        before = []
    pieces: list[str | None] = []
    partial: dict[int, str] = {}
    for start in range(0, tokenizer.vocab_size, AT_ONCE):
        ids = range(start, min(start + AT_ONCE, tokenizer.vocab_size))
        for token_id, text in zip(ids, _decoded(codec, before, ids), strict=True):
            spelled = codec.piece(token_id)
            held = _bytes_of(spelled) if spelled is not None and "\ufffd" in text else None
            if held is not None:
                partial[token_id] = held.hex()
            pieces.append(None if spelled is None or held is not None else text)
    return TokenPieces(
        tokenizer_sha256=tokenizer.fingerprint.tokenizer_sha256,
        pieces=pieces,
        partial=partial,
    )


def write_pieces(tokenizer: ChatTokenizer) -> bytes:
    """Writes the same as JSON, compressed by gzip, as the API sends it."""
    found = find_pieces(tokenizer)
    # Not `model_dump_json`: it checks and copies each of the strings.
    document = {
        "tokenizer_sha256": found.tokenizer_sha256,
        "pieces": found.pieces,
        "partial": {str(token_id): text for token_id, text in found.partial.items()},
    }
    return gzip.compress(orjson.dumps(document), compresslevel=6, mtime=0)


def _decoded(codec: Codec, before: Sequence[int], ids: Sequence[int]) -> list[str]:
    texts = codec.decode_many([[*before, token_id] for token_id in ids])
    # A decoder may write the letter otherwise next to some pieces; these are decoded alone.
    whole = len(_LETTER) if before else 0
    return [
        text[whole:] if not whole or text.startswith(_LETTER) else codec.decode([token_id])
        for text, token_id in zip(texts, ids, strict=True)
    ]


def _bytes_of(spelled: str) -> bytes | None:
    """Returns the bytes that a piece spells; None where they are text, or it spells none."""
    if match := _BYTE.fullmatch(spelled):
        found = bytes.fromhex(match[1])
    elif all(letter in _LETTERS for letter in spelled):
        found = bytes(_LETTERS[letter] for letter in spelled)
    else:
        return None
    try:
        found.decode()
    except UnicodeDecodeError:
        return found
    return None
