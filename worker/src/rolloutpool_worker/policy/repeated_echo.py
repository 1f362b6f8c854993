"""The ids of a prompt that a reply repeats are not read again.

A trainer that knows nothing of delta echoes sends the whole prompt with each reply, and all but its end was in the
reply before. Reading and comparing 4,000 ids takes 0.7 ms, for the same answer as last time. So the text is compared
instead of the ids, by its digest (0.03 ms):

1. `read` finds the list `prompt_token_ids` in a reply's bytes. After the reply was parsed and checked, its `EchoText`
   says how long this text was, how many ids it has, and its digest. The conversation keeps it once the ledger has
   accepted the ids.
2. The next reply's list begins with a text of this length and digest, and a comma or the end of the list follows. Then
   it begins with these ids: the same text is the same ids.
3. `read` puts a word into the list in the place of that text, parses what is left, and takes the word out again.

    last reply    "prompt_token_ids":[1,2,3]              kept: 5 bytes, 3 ids, digest of 1,2,3
    this reply    "prompt_token_ids":[1,2,3,10,11,20]     parsed: ["the word",10,11,20]

Step 3 also proves that the list which was found is the reply's own one, and not one of the same name inside another
object: no trainer knows the word. In any doubt (other white space, no such list, a fault anywhere in the reply) all of
the reply is read, and errors name positions in the whole list.
"""

import re
import secrets
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import orjson

WORTH_BYTES = 2048
"""A shorter reply is read faster than all this takes."""
_KEY = "prompt_token_ids"
_OPENS = re.compile(rb"[ \t\n\r]*:[ \t\n\r]*\[")
_WORD = secrets.token_hex(16)
_JSON_KEY = orjson.dumps(_KEY)
_JSON_WORD = orjson.dumps(_WORD)


@dataclass(frozen=True, slots=True)
class EchoText:
    """The text of a prompt's ids, as a trainer wrote it between the brackets of its list."""

    size: int
    """In bytes."""
    ids: int
    """How many ids it is."""
    digest: bytes
    """blake2b-128 of the text."""


def read(data: bytes, known: EchoText | None) -> tuple[Any, int, EchoText | None]:
    """Parses a reply, but for what its list of prompt ids repeats."""
    start = _start(data) if len(data) >= WORTH_BYTES else 0
    end = data.find(b"]", start) if start else -1
    if end < 0:
        return orjson.loads(data), 0, None
    running = blake2b(digest_size=16)
    with memoryview(data) as text:
        # Where the list is read from: its start, or the end of the known text.
        hashed = at = start
        if known is not None and start + known.size <= end:
            hashed += known.size
            running.update(text[start:hashed])
            if running.digest() == known.digest and data[hashed] in b",]":
                at = hashed
        running.update(text[hashed:end])
        comma = b"," if start == at < end else b""
        document = orjson.loads(b"".join((text[:start], _JSON_WORD, comma, text[at:])))
    ids = document.get(_KEY) if isinstance(document, dict) else None
    if not isinstance(ids, list) or not ids or ids[0] != _WORD:
        return orjson.loads(data), 0, None
    del ids[0]
    repeated = known.ids if known is not None and at > start else 0
    return document, repeated, EchoText(end - start, repeated + len(ids), running.digest())


def _start(data: bytes) -> int:
    """Returns where the first list of this name begins, behind its bracket; 0 where there is none."""
    key = data.find(_JSON_KEY)
    opens = _OPENS.match(data, key + len(_JSON_KEY)) if key >= 0 else None
    return 0 if opens is None else opens.end()
