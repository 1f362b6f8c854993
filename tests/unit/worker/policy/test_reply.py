"""A reply is taken as a whole or not at all, and the refusal names the place."""

from copy import deepcopy
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from rolloutpool_common.errors import TrainerProtocolError
from rolloutpool_worker.policy.reply import _checked, _plain_reply, as_count, parse_reply

WHERE = "turn 1 at http://trainer"


def document(**changes: Any) -> bytes:
    """A right reply, but for these keys; a change to `...` takes the key out."""
    right: dict[str, Any] = {
        "id": "c",
        "created": 1,
        "choices": [{"message": {"role": "assistant", "content": "8"}, "finish_reason": "stop"}],
        "token_ids": [5, 6],
        "logprobs": [-0.5, -0.25],
        "prompt_token_ids": [1, 2, 3],
    }
    return orjson.dumps({key: value for key, value in {**right, **changes}.items() if value is not ...})


def test_a_right_reply_is_taken_with_what_its_headers_say() -> None:
    headers = {"x-keeps-token-ids": "TRUE", "x-policy-version": "7", "x-echo-prefix-length": "2"}
    reply = parse_reply(document(), headers, WHERE, needs_prompt_ids=True)
    assert (reply.token_ids, reply.logprobs, reply.prompt_token_ids) == ([5, 6], [-0.5, -0.25], [1, 2, 3])
    assert (reply.message["content"], reply.finish_reason) == ("8", "stop")
    assert (reply.keeps_ids, reply.policy_version, reply.prefix) == (True, "7", 2)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"<html>", "not JSON"),
        (b"[]", "does not fit the protocol"),
        (b"null", "does not fit the protocol"),
        (b"[" * 500_000, "not JSON"),
        (document(choices=[]), "empty choices"),
        (document(choices=...), "choices"),
        (document(logprobs=...), "logprobs"),
        (document().replace(b"-0.25", b"NaN"), "not JSON"),
        (document(choices=[{"message": {"role": "user", "content": "8"}}]), "role user, not assistant"),
        (
            document(choices=[{"message": {"role": "assistant", "content": [{"type": "image_url"}]}}]),
            r"choices.0.message.content.0: type image_url; only text is supported",
        ),
        (document(token_ids=...), "token_ids"),
        (document(token_ids=[5]), "they must pair up"),
        (document(token_ids=[5, -6]), "token_ids has a negative id at 1"),
        (document(prompt_token_ids=[-1]), "prompt_token_ids has a negative id at 0"),
        (document(token_ids=[5, True]), "token_ids.1: .*integer"),
        (document(token_ids=["5", 6]), "token_ids.0: .*integer"),
        (document(token_ids=[5, 6.0]), "token_ids.1: .*integer"),
        (document().replace(b"[5,6]", b"[5,99999999999999999999]"), "token_ids.1: .*integer"),
        (document(prompt_token_ids=[1, False, 3]), "prompt_token_ids.1: .*integer"),
        (document(logprobs=[-0.5, 0.0011]), "logprobs.1: .*less than or equal to 0.001"),
        (document(logprobs=[1, -0.5]), "logprobs.0: .*less than or equal to 0.001"),
        (document(logprobs=[-1e308, -0.5]), "logprobs.0: .*greater than or equal to -10000"),
        (document(logprobs=[-0.5, "-0.25"]), "logprobs.1: .*number"),
        (document(logprobs=[-0.5, False]), "logprobs.1: .*number"),
        (document(prompt_token_ids=...), "lacks prompt_token_ids"),
        (document().replace(b"-0.25", b"-1e999"), "finite|JSON"),
    ],
)
def test_anything_else_breaks_the_protocol(data: bytes, says: str) -> None:
    with pytest.raises(TrainerProtocolError, match=says) as refused:
        parse_reply(data, {}, WHERE, needs_prompt_ids=True)
    assert WHERE in refused.value.message


@pytest.mark.parametrize("logprobs", [[0, -1], [1e-3, 5e-4], [-9999.0, -0.0]])
def test_rounding_and_the_servers_substitute_for_minus_infinity_are_taken(logprobs: list[float]) -> None:
    assert parse_reply(document(logprobs=logprobs), {}, WHERE, needs_prompt_ids=True).logprobs == logprobs


def test_a_list_that_is_wrong_throughout_is_refused_at_its_first_value() -> None:
    with pytest.raises(TrainerProtocolError, match=r"token_ids\.0") as refused:
        parse_reply(document(token_ids=["5"] * 100_000), {}, WHERE, needs_prompt_ids=True)
    assert len(refused.value.message) < 300


@pytest.mark.parametrize(
    ("value", "number"), [("12", 12), ("0", 0), (None, None), ("", None), ("-1", None), ("1.5", None), ("٣", None)]
)
def test_a_header_that_is_no_number_counts_as_missing(value: str | None, number: int | None) -> None:
    assert as_count(value) == number


CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
ODD = st.sampled_from([
    *(None, True, 0, 1, -1, 7.5, "", "x", "assistant", "user", "y" * 300, [], {}, [1], [CALL], [{**CALL, "type": "f"}]),
    *([{**CALL, "id": ""}], [{**CALL, "index": 0}]),
    [{"id": "c2", "function": {"name": "add", "arguments": {"a": [1]}}}],
    *([-0.5], [-0.5, 0.1], [1e9], [True], ["5"], [2**40], {"a": 1}, [{"type": "text", "text": "t"}], ..., float("inf")),
])  # fmt: skip
PLACES = st.sampled_from([
    *(["id"], ["created"], ["object"], ["model"], ["token_ids"], ["logprobs"], ["prompt_token_ids"]),
    *(["policy_version"], ["other"], ["choices"], ["choices", 0], ["choices", 0, "index"]),
    *(["choices", 0, "finish_reason"], ["choices", 0, "message"], ["choices", 0, "message", "role"]),
    *(["choices", 0, "message", "content"], ["choices", 0, "message", "tool_calls"]),
    *(["choices", 0, "message", "tool_call_id"], ["choices", 0, "message", "reasoning_content"]),
])  # fmt: skip


@given(st.lists(st.tuples(PLACES, ODD), max_size=3), st.sampled_from([None, [CALL]]))
def test_the_quick_way_reads_what_the_models_read_and_leaves_the_rest_to_them(
    changes: list[tuple[list[Any], Any]], calls: list[Any] | None
) -> None:
    reply: dict[str, Any] = orjson.loads(document())
    reply["choices"][0]["message"]["tool_calls"] = calls
    for (*way, last), value in changes:
        at: Any = reply
        for step in way:
            # An earlier change may have put something else there.
            here = step in at if isinstance(at, dict) else isinstance(at, list) and step == 0 and bool(at)
            at = at[step] if here else None
        if isinstance(at, dict) and value is ...:
            at.pop(last, None)
        elif isinstance(at, dict) or (isinstance(at, list) and at and isinstance(last, int)):
            at[last] = None if value is ... else deepcopy(value)
    quick = _plain_reply(deepcopy(reply))
    try:
        expected = _checked(reply, WHERE)
    except (ValidationError, TrainerProtocolError):
        assert quick is None
    else:
        assert quick is None or quick == expected
        assert quick is not None or changes


def test_the_quick_way_keeps_the_history_apart_from_what_tools_get() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": {"a": [1]}}}
    message = {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "so"}
    reply = _plain_reply(orjson.loads(document(choices=[{"message": message}])))
    assert reply is not None
    assert reply.calls is not None
    assert list(reply.message) == ["role", "content", "tool_calls", "tool_call_id", "reasoning_content"]
    arguments = reply.calls[0].function.arguments
    assert isinstance(arguments, dict)
    arguments["a"].append(2)
    assert reply.message["tool_calls"][0]["function"]["arguments"] == {"a": [1]}
