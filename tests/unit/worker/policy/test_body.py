"""`MessageBytes`: the digest of a body is that of its bytes, however they came together."""

import hashlib
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutpool_worker.policy import MessageBytes

TAIL = b'],"response_mask":[0,0]}'
MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": "15 + 23?"},
    {"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]},
    {"role": "tool", "content": "38 \u00e9\U0001f600", "tool_call_id": "1"},
]


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


@pytest.mark.parametrize("known", [0, 1, 2])
def test_a_copy_goes_its_own_way(known: int) -> None:
    messages = MessageBytes(MESSAGES[:known])
    before = messages.body(TAIL)
    longer = messages.followed_by(MESSAGES[known:])
    assert longer.body(TAIL) == MessageBytes(MESSAGES).body(TAIL)
    assert messages.body(TAIL) == before
    messages.append(MESSAGES[known:])
    assert messages.body(TAIL) == longer.body(TAIL)
