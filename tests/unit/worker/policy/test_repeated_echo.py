"""A list that begins with a known text is read from there on; everything else is read from its start."""

import json
from typing import Any

import orjson
import pytest

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


@pytest.mark.parametrize(
    "ids",
    [
        [1, *IDS[1:], *NEW],
        [*IDS[:-1], IDS[-1] + 1, *NEW],
        [*IDS[:-1], *NEW],
        IDS[:-1],
        [*IDS[:-1], IDS[-1] * 10, *NEW],
        [*IDS[:500], *IDS[501:], *NEW, *NEW],
        [*NEW, *IDS],
        [],
    ],
)
def test_another_head_is_read_whole(ids: list[int]) -> None:
    reply = parsed(body(ids), known_of(IDS))
    assert (reply.repeated, reply.prompt_token_ids) == (0, ids)


def test_a_text_that_goes_on_within_its_last_id_is_read_whole() -> None:
    known = known_of([*IDS, 12])
    reply = parsed(body([*IDS, 123]), known)
    assert (reply.repeated, reply.prompt_token_ids) == (0, [*IDS, 123])


@pytest.mark.parametrize(
    ("tail", "says"),
    [
        (True, "integer"),
        (1.0, "integer"),
        ("5", "integer"),
        (None, "integer"),
        ([3], "integer"),
        ({}, "integer"),
        (-4, "negative id at 1000: -4"),
    ],
)
def test_a_wrong_tail_is_refused_at_its_place_in_the_whole_list(tail: object, says: str) -> None:
    for known in (None, known_of(IDS)):
        with pytest.raises(TrainerProtocolError, match=says) as refused:
            parsed(body([*IDS, tail]), known)
        assert "1000" in refused.value.message


@pytest.mark.parametrize("head", [True, 7.0, "7", -7, None, [7]])
def test_a_wrong_head_is_refused(head: object) -> None:
    with pytest.raises(TrainerProtocolError):
        parsed(body([IDS[0], head, *IDS[2:], *NEW]), known_of(IDS))


@pytest.mark.parametrize("ids", [None, {}, "1,2,3", 5, {"prompt_token_ids": [*IDS, *NEW]}, [[*IDS]], [IDS, NEW]])
def test_what_is_no_list_of_ids_is_refused(ids: object) -> None:
    with pytest.raises(TrainerProtocolError):
        parsed(body(ids), known_of(IDS))


def test_a_list_of_the_same_name_in_another_place_is_not_taken_for_the_replys_own() -> None:
    known, own = known_of(IDS), [1, 2, 3]
    hidden = {"vendor": {"prompt_token_ids": [*IDS, *NEW]}, **document(own)}
    reply = parsed(orjson.dumps(hidden), known)
    assert (reply.repeated, reply.prompt_token_ids) == (0, own)
    # Written with an escape, the key is the same to a parser; of two, the last counts.
    twice = body([*IDS, *NEW])[:-1] + b',"prompt\\u005ftoken_ids":[1,2,3]}'
    assert orjson.loads(twice)["prompt_token_ids"] == own
    reply = parsed(twice, known)
    assert (reply.repeated, reply.prompt_token_ids) == (0, own)
    # In a text it stands with escaped quotes.
    said = document(own, choices=[{"message": {"role": "assistant", "content": body([*IDS, *NEW]).decode()}}])
    reply = parsed(orjson.dumps(said), known)
    assert (reply.repeated, reply.prompt_token_ids) == (0, own)


def test_a_trainer_cannot_say_that_it_repeats() -> None:
    # Even with the word, which no trainer knows: it stands where no id may stand.
    word = repeated_echo._WORD
    for ids in ([word], [word, *NEW], [word, *IDS]):
        with pytest.raises(TrainerProtocolError):
            parsed(body(ids), known_of(IDS))
        with pytest.raises(TrainerProtocolError):
            parsed(body([*IDS, *ids]), known_of(IDS))


def test_a_reply_that_leaves_a_prefix_out_is_read_whole() -> None:
    reply = parsed(body([*IDS, *NEW]), known_of(IDS), **{"x-echo-prefix-length": "12"})
    assert (reply.prefix, reply.repeated, reply.prompt_token_ids) == (12, 0, [*IDS, *NEW])
    assert reply.echo_text is None


@pytest.mark.parametrize("data", [b"", b"{", b"[1", b"\xff" * 5000, b"null", b'"prompt_token_ids":[' * 500])
def test_nonsense_is_refused_as_ever(data: bytes) -> None:
    with pytest.raises(TrainerProtocolError) as whole:
        parsed(data, None)
    with pytest.raises(TrainerProtocolError) as known:
        parsed(data, known_of(IDS))
    assert whole.value.message == known.value.message


def test_ten_megabytes_are_read_from_their_end() -> None:
    ids = IDS * 2_000
    reply = parsed(body([*ids, *NEW]), known_of(ids))
    assert (reply.repeated, reply.prompt_token_ids) == (2_000_000, NEW)
