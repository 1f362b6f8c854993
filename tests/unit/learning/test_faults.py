"""Faults hit the share of calls that they should, each call always or never, and nothing that is no call."""

from typing import Any

import pytest
from examples.learning.faults import FaultyEndpoint, fails


def test_the_share_is_kept_and_a_repeated_call_fares_alike() -> None:
    keys = [f"b{batch:032d}-{index}/{turn}".encode() for batch in range(20) for index in range(50) for turn in (1, 2)]
    found = [fails(key, 0.15) for key in keys]
    assert 0.12 < sum(found) / len(found) < 0.18
    assert found == [fails(key, 0.15) for key in keys]
    assert found == [fails(key + b"/2", 0.15) for key in keys]
    assert not any(fails(key, 0.0) for key in keys)


@pytest.mark.parametrize(
    ("scope", "status"),
    [
        ({"type": "http", "headers": [(b"idempotency-key", b"u/1")]}, 410),
        ({"type": "http", "headers": []}, 200),
        ({"type": "lifespan"}, 200),
    ],
)
async def test_only_calls_fail(scope: dict[str, Any], status: int) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200})

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    endpoint = FaultyEndpoint(app, 1.0)
    await endpoint(scope, send, send)  # type: ignore[arg-type]
    assert sent[0]["status"] == status
    assert endpoint.failed == (status == 410)
