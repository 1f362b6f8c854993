"""`MessageBytes`: the digest of a body is that of its bytes, however they came together."""

import hashlib
from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st

from rolloutpool_worker.policy.body import MessageBytes

TAIL = b'],"response_mask":[0,0]}'


def digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


@given(pieces=st.lists(st.lists(st.fixed_dictionaries({"role": st.just("user"), "content": st.text()}), max_size=3)))
def test_messages_that_come_in_pieces_are_one_list(pieces: list[list[dict[str, Any]]]) -> None:
    messages = MessageBytes()
    for piece in pieces:
        messages.append(piece)
    body = messages.body(TAIL)
    whole = [message for piece in pieces for message in piece]
    assert orjson.loads(body.data) == {"model": "default", "messages": whole, "response_mask": [0, 0]}
    assert body.digest == digest(body.data)
    assert body == MessageBytes(whole).body(TAIL)
