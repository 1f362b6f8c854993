"""What each policy does for the loop that asks it, whoever samples; modules of one policy have what only it does.

Each is asked over real connections: a trainer's callback, both engines, and a chat endpoint.
"""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from tests.support.batches import NOWHERE
from tests.support.chat_server import ChatServer, chat_server
from tests.support.policies import ASK, ATTEMPTS, LARGEST, SAID, Fails, PolicyCase, answers, hangs_up, policy_case

from rolloutpool_common.errors import (
    RequestChanged,
    RolloutError,
    TrainerProtocolError,
    TrainerStatusError,
    TrainerUnreachable,
)
from rolloutpool_common.rendering import ChatTokenizer
from rolloutpool_worker.conversation.echo import AskedTurn
from rolloutpool_worker.drain import Drained

PAGE = answers(200, b"<html>502 Bad Gateway</html>")
BUSY = answers(429, Retry_After="7")


@pytest.fixture(scope="module")
def controller() -> Iterator[ChatServer]:
    with chat_server() as made:
        yield made


@pytest.fixture(params=["callback", "vllm", "sglang", "chat"])
async def case(
    request: pytest.FixtureRequest, tokenizer: ChatTokenizer, controller: ChatServer
) -> AsyncIterator[PolicyCase]:
    async with policy_case(request.param, tokenizer, controller) as made:
        yield made


async def test_the_first_turn_needs_no_plan_and_brings_a_message(case: PolicyCase) -> None:
    reply, asked = await case.attempt().ask(1)
    assert (reply.message["role"], reply.message["content"], reply.finish_reason) == ("assistant", SAID, "stop")
    assert asked == AskedTurn(1)
    assert len(reply.logprobs) == len(reply.token_ids)
    assert (case.failures.calls, case.gated, case.pauses) == (1, 1, [])


async def test_a_planned_turn_is_asked_with_the_same_request_by_any_worker(case: PolicyCase) -> None:
    planned = None
    for _ in range(2):
        attempt = case.attempt()
        await attempt.begin()
        planned = attempt.branch.planned = planned or await attempt.plan(2)
        assert not planned.edited
        _, asked = await attempt.ask(2)
        assert (asked.turn, asked.edited) == (2, False)
    begun, of_first, _, of_other = case.requests
    assert of_first == of_other
    # And the request goes on from the whole conversation.
    assert of_first != begun


async def test_another_request_than_was_planned_is_not_sent(case: PolicyCase) -> None:
    first, other = case.attempt(), case.attempt()
    for attempt in (first, other):
        await attempt.begin()
    other.branch.planned = await first.plan(2)
    history, tokens = other.branch.history, other.branch.tokens
    changed = [*history.messages[:-1], {"role": "user", "content": "Something else"}]
    await tokens.replace(changed, 1)
    history.replace(changed)
    with pytest.raises(RequestChanged, match="turn 2"):
        await other.ask(2)
    assert case.failures.calls == 2


async def test_a_turn_after_an_edit_says_so(case: PolicyCase) -> None:
    attempt = case.attempt()
    await attempt.begin()
    history, tokens = attempt.branch.history, attempt.branch.tokens
    await tokens.replace(ASK, 1)
    history.replace(ASK)
    assert (await attempt.plan(2, edited=True)).edited
    assert (await attempt.ask(2))[1].edited


async def test_a_busy_one_is_asked_again_when_it_says_and_each_call_passes_the_gate(case: PolicyCase) -> None:
    # A rollout holds its slot meanwhile, so no policy names a time of more than half a minute.
    case.failures.next = [BUSY, answers(429, Retry_After="86400")]
    assert (await case.attempt().ask(1))[0].message["content"] == SAID
    assert (case.failures.calls, case.gated, case.pauses) == (3, 3, [7, 30])


@pytest.mark.parametrize("idempotent", [True, False])
@pytest.mark.parametrize("lost", [hangs_up, PAGE, answers(504)], ids=["hangs up", "a gateway's page", "504"])
async def test_a_turn_whose_reply_is_lost_is_asked_again_where_the_policy_says_so(
    case: PolicyCase, lost: Fails, idempotent: bool
) -> None:
    attempt = case.attempt(idempotent=idempotent)
    may_repeat = attempt.policy.may_repeat
    # An engine keeps nothing, so nobody has the first reply.
    assert may_repeat is (idempotent or case.kind in ("vllm", "sglang"))
    case.failures.next = [lost]
    if may_repeat:
        assert (await attempt.ask(1))[0].message["content"] == SAID
    else:
        with pytest.raises(RolloutError) as raised:
            await attempt.ask(1)
        assert not raised.value.retryable
    assert case.failures.calls == 1 + may_repeat


async def test_it_is_asked_so_often_and_no_oftener(case: PolicyCase) -> None:
    case.failures.next = [answers(500)] * 9
    with pytest.raises(TrainerStatusError) as raised:
        await case.attempt(idempotent=True).ask(1)
    assert (raised.value.http_status, raised.value.retryable) == (500, True)
    assert (case.failures.calls, len(case.pauses)) == (ATTEMPTS, ATTEMPTS - 1)


@pytest.mark.parametrize(
    ("failure", "error"),
    [
        (answers(400), TrainerStatusError),
        (answers(401), TrainerStatusError),
        (answers(200, b'{"x": "' + b"x" * LARGEST + b'"}'), TrainerProtocolError),
    ],
    ids=["400", "401", "too large"],
)
async def test_what_asking_again_cannot_mend_is_asked_once(
    case: PolicyCase, failure: Fails, error: type[RolloutError]
) -> None:
    case.failures.next = [failure]
    with pytest.raises(error) as raised:
        await case.attempt(idempotent=True).ask(1)
    assert not raised.value.retryable
    assert (case.failures.calls, case.pauses) == (1, [])


@pytest.mark.parametrize("document", [b"{}", b'{"choices": []}', b'{"choices": 7, "meta_info": 7}', b'{"error": "x"}'])
async def test_what_is_no_turn_is_no_reply(case: PolicyCase, document: bytes) -> None:
    case.failures.next = [answers(200, document)] * ATTEMPTS
    with pytest.raises((TrainerProtocolError, TrainerUnreachable)):
        await case.attempt().ask(1)


async def test_nobody_there(case: PolicyCase) -> None:
    attempt = case.attempt(url=NOWHERE)
    with pytest.raises(TrainerUnreachable, match=r"turn 1 at .*refused") as raised:
        await attempt.ask(1)
    assert raised.value.retryable
    assert len(case.pauses) == ATTEMPTS - 1


@pytest.mark.parametrize("failure", [BUSY, answers(503)], ids=["busy", "paused"])
async def test_a_drain_ends_the_pause_and_nothing_more_is_asked(case: PolicyCase, failure: Fails) -> None:
    case.failures.next, case.error = [failure], Drained()
    with pytest.raises(Drained):
        await case.attempt().ask(1)
    assert case.failures.calls == 1


async def test_a_gate_that_is_closed_lets_no_call_through(case: PolicyCase) -> None:
    case.closed = TimeoutError("closed")
    with pytest.raises(TimeoutError, match="closed"):
        await case.attempt().ask(1)
    assert case.failures.calls == 0


async def test_a_policy_knows_how_its_endpoint_takes_repetitions(case: PolicyCase) -> None:
    for idempotent in (True, False):
        policy = case.attempt(idempotent=idempotent).policy
        promised: dict[str, Any] = {"vllm": True, "sglang": True}
        assert await policy.ask_idempotent() is promised.get(case.kind, False)
        assert not policy.is_news("b")
