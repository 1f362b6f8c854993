"""A session says of each request whether its turn is finished, being sampled, or next."""

from dataclasses import replace
from typing import Any

import pytest

from rolloutpool_trainer.endpoint.errors import EndpointError
from rolloutpool_trainer.endpoint.policy import Generation
from rolloutpool_trainer.endpoint.prompts import Prompt
from rolloutpool_trainer.endpoint.request import TurnRequest, parse_request
from rolloutpool_trainer.endpoint.sessions import Session

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


def test_what_does_not_fit_is_a_conflict() -> None:
    assert conflict(after_one_turn(), request(1, digest="other"))["expected"] == "d"
    assert conflict(after_one_turn(), request(3))["expected"] == 2
    session = after_one_turn()
    session.admit(request(2, attempt=3))
    assert conflict(session, request(2, attempt=2))["expected"] == 3
    assert session.attempt == 3
