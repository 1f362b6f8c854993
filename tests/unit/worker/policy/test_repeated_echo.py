"""A list that begins with a known text is read from there on; everything else is read from its start."""

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutpool_common.errors import TrainerProtocolError
from rolloutpool_worker.policy import repeated_echo
from rolloutpool_worker.policy.repeated_echo import WORTH_BYTES, EchoText, read
from rolloutpool_worker.policy.reply import Reply, parse_reply

IDS = [7 * n % 4096 for n in range(1000)]
NEW = [10, 11, 20]
PADDING = "x" * WORTH_BYTES


def document(ids: Any, **changes: Any) -> dict[str, Any]:
    """A right reply with these prompt ids."""
    choices = [{"message": {"role": "assistant", "content": PADDING}, "finish_reason": "stop"}]
    right = {"id": "c", "created": 1, "choices": choices, "token_ids": [5], "logprobs": [-0.5], "prompt_token_ids": ids}
    return {**right, **changes}


def body(ids: Any, **changes: Any) -> bytes:
    return orjson.dumps(document(ids, **changes))


def known_of(ids: list[int]) -> EchoText:
    text = read(body(ids), None)[2]
    assert text is not None
    assert text.ids == len(ids)
    return text


def parsed(data: bytes, known: EchoText | None, **headers: str) -> Reply:
    return parse_reply(data, headers, "turn 2", needs_prompt_ids=True, known=known)


@pytest.mark.parametrize("new", [NEW, [], [0]])
def test_what_is_repeated_is_not_read_again(new: list[int]) -> None:
    reply = parsed(body([*IDS, *new]), known_of(IDS))
    assert (reply.repeated, reply.prompt_token_ids, reply.skipped) == (len(IDS), new, len(IDS))
    # What is kept for the next reply is that of the whole text, however it was read.
    assert reply.echo_text == known_of([*IDS, *new])


def test_a_trainers_own_white_space_is_its_text() -> None:
    spaced = json.dumps(document(IDS)).encode(), json.dumps(document([*IDS, *NEW])).encode()
    known = read(spaced[0], None)[2]
    reply = parsed(spaced[1], known)
    assert (reply.repeated, reply.prompt_token_ids) == (len(IDS), NEW)
    # The same ids, written in another way, are read whole.
    other = parsed(body([*IDS, *NEW]), known)
    assert (other.repeated, other.prompt_token_ids) == (0, [*IDS, *NEW])


def outcome(data: bytes, known: EchoText | None, ids: list[int] = IDS) -> object:
    """The prompt's ids of a reply, or what is said against it; `ids` are those that are known."""
    try:
        reply = parsed(data, known)
    except TrainerProtocolError as refused:
        return refused.message
    assert reply.prompt_token_ids is not None
    return [*ids[: reply.repeated], *reply.prompt_token_ids]


ODD: st.SearchStrategy[Any] = st.sampled_from([0, 7, 70, -7, 2**40, True, 7.0, "7", repeated_echo._WORD, None, [7], {}])
EDITS = st.tuples(st.sampled_from(["put", "insert", "cut"]), st.integers(0, len(IDS) + len(NEW)), ODD)


@given(st.lists(EDITS, max_size=3), st.sampled_from([IDS, [*IDS, 12]]))
def test_whatever_the_list_has_comes_to_the_same(edits: list[tuple[str, int, Any]], known: list[int]) -> None:
    ids: list[Any] = [*IDS, *NEW]
    for edit, at, value in edits:
        ids[at : at + (edit != "insert")] = [] if edit == "cut" else [value]
    assert outcome(body(ids), known_of(known), known) == outcome(body(ids), None)


def test_a_text_that_goes_on_within_its_last_id_is_read_whole() -> None:
    known = [*IDS, 12]
    assert outcome(body([*IDS, 123]), known_of(known), known) == [*IDS, 123]


HIDDEN = {"vendor": {"prompt_token_ids": [*IDS, *NEW]}, **document([1, 2, 3])}
SAID = document([1, 2, 3], choices=[{"message": {"role": "assistant", "content": body([*IDS, *NEW]).decode()}}])
OTHER_REPLIES: dict[str, bytes] = {
    **{repr(ids)[:20]: body(ids) for ids in (None, {}, [], "1,2,3", 5, [IDS, NEW], {"prompt_token_ids": IDS})},
    "an id that goes on": body([*IDS[:-1], IDS[-1] * 10, *NEW]),
    "the head twice": body([*IDS, *IDS]),
    "a wrong tail": body([*IDS, None]),
    "a list of the same name elsewhere": orjson.dumps(HIDDEN),
    "such a list and none": orjson.dumps({**HIDDEN, "prompt_token_ids": []}),
    # In a text it stands with escaped quotes.
    "such a list in a text": orjson.dumps(SAID),
    # Written with an escape, the key is the same to a parser; of two, the last counts.
    "the key twice": body([*IDS, *NEW])[:-1] + b',"prompt\\u005ftoken_ids":[1,2,3]}',
    **{repr(data[:20]): data for data in (b"", b"{", b"[1", b"\xff" * 5000, b"null", b'"prompt_token_ids":[' * 500)},
}


@pytest.mark.parametrize("data", OTHER_REPLIES.values(), ids=OTHER_REPLIES)
def test_whatever_else_is_replied_comes_to_the_same(data: bytes) -> None:
    assert outcome(data, known_of(IDS)) == outcome(data, None)


def test_a_wrong_tail_is_refused_at_its_place_in_the_whole_list() -> None:
    with pytest.raises(TrainerProtocolError, match=r"token_ids\.1000|negative id at 1000"):
        parsed(body([*IDS, -4]), known_of(IDS))


def test_a_reply_that_leaves_a_prefix_out_is_read_whole() -> None:
    reply = parsed(body([*IDS, *NEW]), known_of(IDS), **{"x-echo-prefix-length": "12"})
    assert (reply.prefix, reply.repeated, reply.prompt_token_ids) == (12, 0, [*IDS, *NEW])
    assert reply.echo_text is None
