"""An engine's reply is used as a whole, or refused with the reason."""

from typing import Any

import orjson
import pytest

from rolloutpool_common.errors import TrainerProtocolError
from rolloutpool_worker.capabilities.engines.reply import (
    ReplyReader,
    SampledCall,
    VersionSpan,
    check_call,
)
from rolloutpool_worker.policy.foreign_reply import ForeignReply

WHERE = "turn 1"
UID = "b0c1d2-0"
NAME = f"{UID}/2.1.3"


def reader(document: Any = None, prompt: bytes = b"1,2") -> ReplyReader:
    return ReplyReader(orjson.dumps({} if document is None else document), prompt, WHERE)


def sampled(**changes: Any) -> SampledCall:
    """A right reply of three ids, changed."""
    fields = {"ids": [5, 6, 9], "logprobs": [-0.1, -0.2, -0.3], "finish": "stop", "spans": None, **changes}
    return reader().sampled(**fields)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"ids": [5, 6]}, "2 sampled ids, but 3 log-probabilities"),
        ({"ids": [5, 6, 9, 9]}, "4 sampled ids, but 3"),
        ({"ids": None}, "not a list of integers"),
        ({"ids": [5, 6, True]}, "not a list of integers"),
        ({"ids": [5, 6, 9.0]}, "not a list of integers"),
        ({"ids": [5, 6, "9"]}, "not a list of integers"),
        ({"ids": [5, 6, -9]}, "a negative id: -9"),
        ({"logprobs": [-0.1, -9999.0, -0.3]}, "no log-probability for the sampled id at 1"),
        ({"logprobs": [-0.1, -0.2, float("nan")]}, "at 2"),
        ({"logprobs": [float("-inf"), -0.2, -0.3]}, "at 0"),
        ({"logprobs": [float("inf"), -0.2, -0.3]}, "at 0"),
        ({"logprobs": [None, -0.2, -0.3]}, "at 0"),
        ({"logprobs": [True, -0.2, -0.3]}, "at 0"),
        ({"logprobs": ["-0.1", -0.2, -0.3]}, "at 0"),
        ({"logprobs": [0.5, -0.2, -0.3]}, "at 0"),
        ({"finish": None}, "unknown finish_reason 'None'"),
        ({"finish": "error"}, "unknown finish_reason 'error'"),
        ({"finish": {"type": "stop"}}, "unknown finish_reason"),
        ({"spans": ()}, "end at 0 of 3"),
        ({"spans": (VersionSpan("1", 0, 2),)}, "end at 2 of 3"),
        ({"spans": (VersionSpan("1", 1, 3),)}, "a span begins at 1"),
        ({"spans": (VersionSpan("1", 0, 2), VersionSpan("2", 1, 3))}, "a span begins at 1"),
        ({"spans": (VersionSpan("1", 0, 1), VersionSpan("2", 2, 3))}, "a span begins at 2"),
        ({"spans": (VersionSpan("1", 0, 0), VersionSpan("2", 0, 3))}, "a span begins at 0"),
        ({"spans": (VersionSpan("1", 0, 4),)}, "end at 4 of 3"),
    ],
)
def test_what_does_not_fit_together_is_refused(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(TrainerProtocolError) as refused:
        sampled(**changes)
    assert why in refused.value.message
    assert refused.value.message.startswith(WHERE)


@pytest.mark.parametrize(
    "listed",
    ["12", {"version": "1", "start": 0, "end": 3}, [None], [{"version": "1", "start": 0}], [{"start": "0", "end": 3}]],
)
def test_spans_that_cannot_be_read_are_refused(listed: Any) -> None:
    with pytest.raises(TrainerProtocolError):
        reader().spans(listed)


@pytest.mark.parametrize(
    "data",
    [
        b'{"prompt_token_ids": [1, 2]}',
        b'{ "prompt_token_ids" :[1,2]}',
        b'{"other":{"prompt_token_ids":[1,2]},"prompt_token_ids":[ 1,2 ]}',
        b'{"text":"\\"prompt_token_ids\\":[1,2]","prompt_token_ids":[1, 2]}',
    ],
)
def test_other_ways_to_write_the_prompt_are_read(data: bytes) -> None:
    found = ReplyReader(data, b"1,2", WHERE)
    found.check_prompt(found.document["prompt_token_ids"])


@pytest.mark.parametrize(
    ("reported", "why"),
    [
        (b"[1]", "sampled from 1 prompt ids, sent were 2; they differ at 1"),
        (b"[2]", "they differ at 0"),
        (b"[1,2,3]", "sampled from 3 prompt ids, sent were 2; they differ at 2"),
        (b"[1,22]", "they differ at 1"),
        (b"[]", "sampled from 0 prompt ids"),
        (b"null", "lacks prompt_token_ids"),
        (b'"1,2"', "lacks prompt_token_ids"),
    ],
)
def test_another_prompt_is_refused(reported: bytes, why: str) -> None:
    found = ReplyReader(b'{"prompt_token_ids":%b}' % reported, b"1,2", WHERE)
    with pytest.raises(TrainerProtocolError) as refused:
        found.check_prompt(found.document["prompt_token_ids"])
    assert why in refused.value.message


def test_a_prompt_in_another_object_proves_nothing() -> None:
    found = ReplyReader(b'{"echo":{"prompt_token_ids":[1,2]},"prompt_token_ids":[1,3]}', b"1,2", WHERE)
    with pytest.raises(TrainerProtocolError):
        found.check_prompt(found.document["prompt_token_ids"])


@pytest.mark.parametrize("data", [b"", b"<html>", b"[1]", b'"x"', b'{"a":NaN}', b"{" * 5000])
def test_what_is_no_object_is_refused(data: bytes) -> None:
    with pytest.raises(TrainerProtocolError):
        ReplyReader(data, b"1,2", WHERE)


def test_a_reply_that_is_cut_anywhere_is_refused() -> None:
    whole = orjson.dumps({"prompt_token_ids": [1, 2], "choices": [{"token_ids": [5]}]})
    for end in range(len(whole)):
        with pytest.raises(TrainerProtocolError):
            ReplyReader(whole[:end], b"1,2", WHERE)


@pytest.mark.parametrize(
    "reported",
    [
        NAME,
        f"cmpl-{NAME}",
        f"generate-tokens-{NAME}",
        f"cmpl-{NAME}-0",
        # The name is not given back: some versions make an id up, and gateways bring their own.
        None,
        "",
        7,
        [NAME],
        "generate-tokens-3f2a51c0",
        "cmpl-0b1e6f0a-6f3d-4f43-9f2e-1c7f0d2b9e55",
        "chatcmpl-1.2.3",
    ],
)
def test_a_call_has_its_own_reply(reported: Any) -> None:
    check_call((reported, None), NAME)


@pytest.mark.parametrize(
    "reported",
    [
        "cmpl-b0c1d2-1/2.1.3",
        f"cmpl-{UID}/1.1.3",
        f"cmpl-{UID}/2.2.3",
        f"cmpl-{UID}/2.1.31",
        f"cmpl-{UID}/2.1.2",
        f"9{NAME}",
        "generate-tokens-b9/1.1.1-0",
    ],
)
def test_another_calls_reply_is_foreign(reported: str) -> None:
    with pytest.raises(ForeignReply, match="the reply names another turn"):
        check_call((None, reported), NAME)
