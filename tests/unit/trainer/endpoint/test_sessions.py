"""A session says of each request whether its turn is finished, being sampled, or next."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from rolloutpool_trainer.endpoint.errors import EndpointError
from rolloutpool_trainer.endpoint.policy import Generation
from rolloutpool_trainer.endpoint.prompts import Prompt
from rolloutpool_trainer.endpoint.reply import TurnReply, TurnTokens
from rolloutpool_trainer.endpoint.request import TurnRequest, parse_request
from rolloutpool_trainer.endpoint.sessions import NextTurn, RunningTurn, Session

BODY = b'{"messages": [{"role": "user", "content": "x"}], "rollout_id": "a"}'
PROMPT, SAMPLED, LOGPROBS = [1, 2, 3], [4, 5], [-0.5, -1.0]


def request(turn: int | None = 1, attempt: int = 1, digest: str = "d", **changes: Any) -> TurnRequest:
    headers = {} if turn is None else {"Idempotency-Key": f"u/{turn}", "X-Rollout-Attempt": str(attempt)}
    parsed = parse_request(headers, BODY)
    return replace(parsed, digest=digest, **changes)


def after_one_turn() -> Session:
    session = Session("a", "u")
    generation = Generation(token_ids=SAMPLED, logprobs=LOGPROBS, policy_version="7")
    session.commit(request(), 1, Prompt(PROMPT, None), generation, {"id": "head"}, b"reply")
    return session


def conflict(session: Session, asked: TurnRequest) -> dict[str, Any]:
    with pytest.raises(EndpointError) as caught:
        session.admit(asked)
    assert caught.value.status == 409
    return caught.value.details


def test_an_unasked_session_is_empty() -> None:
    session = Session("a", None)
    assert session.turns == session.ones == session.zeros == 0
    assert session.response_ids == session.response_mask == session.prompt_ids == []
    assert session.response_logprobs == []
    assert session.samples == []


def test_the_next_turn_is_sampled() -> None:
    assert Session("a", "u").admit(request(1)) == NextTurn(1)
    assert after_one_turn().admit(request(2)) == NextTurn(2)
    assert after_one_turn().admit(request(None)) == NextTurn(2)


def test_a_finished_turn_is_repeated_from_the_ledger() -> None:
    session = after_one_turn()
    turn = session.admit(request(1, attempt=2))
    assert not isinstance(turn, NextTurn | RunningTurn)
    assert session.tokens_of(turn) == TurnTokens(PROMPT, SAMPLED, LOGPROBS)
    assert (turn.head, turn.policy_version) == ({"id": "head"}, "7")


async def test_a_running_turn_is_joined_by_its_own_request_alone() -> None:
    session = Session("a", "u")
    task = asyncio.create_task(asyncio.sleep(0, TurnReply(b"", {})))
    session.running = RunningTurn(1, "d", task)
    assert session.admit(request(1)) is session.running
    assert conflict(session, request(1, digest="other"))["expected"] == 1
    assert conflict(session, request(2))["received"] == 2
    await task


def test_what_does_not_fit_is_a_conflict() -> None:
    assert conflict(after_one_turn(), request(1, digest="other"))["expected"] == "d"
    assert conflict(after_one_turn(), request(3))["expected"] == 2
    session = after_one_turn()
    session.admit(request(2, attempt=3))
    assert conflict(session, request(2, attempt=2))["expected"] == 3
    assert session.attempt == 3


def test_only_the_first_request_without_identity_and_mask_starts_again() -> None:
    session = after_one_turn()
    assert session.restarts_with(request(None))
    assert not session.restarts_with(request(1))
    assert not session.restarts_with(request(None, mask=[0]))
    assert not session.restarts_with(request(None, history=(b"another",)))
