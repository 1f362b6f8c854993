"""Each act of an admin leaves a line with its name, target and outcome, and nothing else of the request."""

import hashlib
from collections.abc import Callable
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send
from structlog.testing import capture_logs

from rolloutpool_api.access import Principal
from rolloutpool_api.audit import Audit
from rolloutpool_common.security.api_keys import GUEST, ApiKey, KeyScope


def caller(*scopes: KeyScope, keyless: bool = False) -> Principal:
    key = ApiKey("boss", frozenset(scopes), hashlib.sha256(b"SECRET").digest())
    return Principal(GUEST if keyless else "boss", key.scopes, None if keyless else key)


def cancel_batch() -> None: ...


def submit_batch() -> None: ...


def evidence() -> None: ...


async def lines(
    endpoint: Callable[[], None] | None,
    who: Principal,
    *,
    method: str = "DELETE",
    query: bytes = b"",
    status: int | None = 200,
    **params: str,
) -> list[dict[str, Any]]:
    """What is logged of a request that is answered so; None for an error that nobody has answered."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        # As the router does.
        scope.update(endpoint=endpoint, path_params=params)
        if status is None:
            raise ZeroDivisionError
        await send({"type": "http.response.start", "status": status, "headers": []})

    async def receive() -> Message:
        return {"type": "http.request", "body": b"SECRET"}

    async def send(message: Message) -> None: ...

    scope: Scope = {
        **{"type": "http", "method": method, "path": "/x", "query_string": query, "state": {"caller": who}},
        "headers": [(b"authorization", b"Bearer SECRET")],
    }
    with capture_logs() as logs:
        if status is None:
            with pytest.raises(ZeroDivisionError):
                await Audit(app)(scope, receive, send)
        else:
            await Audit(app)(scope, receive, send)
    return [dict(line) for line in logs if line["event"] == "admin_action"]


ADMIN = caller(KeyScope.ADMIN)


@pytest.mark.parametrize(
    ("query", "status", "action", "outcome"),
    [
        (b"", 200, "cancel_batch", "ok"),
        (b"purge=true", 200, "purge_batch", "ok"),
        (b"purge=0", 200, "cancel_batch", "ok"),
        (b"purge=1", 409, "purge_batch", "refused"),
        (b"purge=1", 503, "purge_batch", "failed"),
        (b"", None, "cancel_batch", "failed"),
    ],
)
async def test_an_act_leaves_a_line(query: bytes, status: int | None, action: str, outcome: str) -> None:
    (line,) = await lines(cancel_batch, ADMIN, query=query, status=status, batch_id="b7")
    assert (line["key"], line["action"], line["outcome"], line["target"]) == (
        *("boss", action, outcome),
        {"batch_id": "b7"},
    )
    assert "SECRET" not in str(line)


async def test_what_is_no_act_leaves_none() -> None:
    assert await lines(cancel_batch, ADMIN, method="GET") == []
    assert await lines(submit_batch, ADMIN, method="POST") == []
    assert await lines(None, ADMIN, method="POST", status=404) == []
    assert await lines(cancel_batch, caller(KeyScope.SUBMIT)) == []
    assert await lines(cancel_batch, caller(*KeyScope, keyless=True)) == []


async def test_a_look_at_evidence_and_a_refused_try_leave_one() -> None:
    (look,) = await lines(evidence, ADMIN, method="GET", uid="x" * 1000)
    assert (look["action"], look["target"]) == ("evidence", {"uid": "x" * 256})
    (tried,) = await lines(cancel_batch, caller(KeyScope.SUBMIT), query=b"purge=true", status=403)
    assert (tried["action"], tried["outcome"]) == ("purge_batch", "refused")
