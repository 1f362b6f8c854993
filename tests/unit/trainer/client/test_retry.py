"""How long clients insist, on a clock of the test's own."""

import httpx
import pytest

from rolloutpool_trainer.client import calls
from rolloutpool_trainer.client import retry as patience
from rolloutpool_trainer.client.retry import RetryPolicy
from rolloutpool_trainer.errors import PoolUnavailable


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr("rolloutpool_trainer.client.retry.time.monotonic", lambda: now[0])
    return now


def answer(status: int, **headers: str) -> httpx.Response:
    return httpx.Response(status, headers=headers)


def test_delays_grow_to_a_limit_and_end(clock: list[float]) -> None:
    insisting = RetryPolicy(calls.health(), "http://pool", 60.0)
    delays: list[float] = []

    def fail_for_ever() -> None:
        while True:
            try:
                raise httpx.ConnectError("refused")
            except httpx.ConnectError as error:
                delays.append(insisting.after_error(error))
            clock[0] += delays[-1]

    with pytest.raises(PoolUnavailable, match="http://pool/health: no answer") as caught:
        fail_for_ever()
    assert caught.value.__suppress_context__, "its traceback ends with the message, without the client's library"
    assert 0.05 <= delays[0] <= 0.1
    assert max(delays) <= patience.BACKOFF.longest_s
    assert sum(delays) == pytest.approx(60.0)


def test_what_the_pool_asks_for_is_honoured_within_reason(clock: list[float]) -> None:
    insisting = RetryPolicy(calls.health(), "http://pool", 60.0)
    assert insisting.after_answer(answer(503, **{"Retry-After": "2"})) == 2.0
    assert insisting.after_answer(answer(503, **{"Retry-After": "3600"})) == patience.BACKOFF.longest_s
    date = insisting.after_answer(answer(503, **{"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}))
    assert date is not None
    assert date <= patience.BACKOFF.longest_s
