"""The requests that FastAPI does not see are answered as FastAPI would: the same table of odd requests to both."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import orjson
import pytest
from starlette.types import ASGIApp, Receive, Scope, Send
from structlog.testing import capture_logs
from tests.support.api_callers import auth, shared_api
from tests.support.api_requests import batch, v1_request
from tests.support.scripted_worker import ScriptedWorker
from tests.support.waiting import until

from rolloutpool_api import app, request_metrics
from rolloutpool_api.hot_routes import HotRoutes
from rolloutpool_common.process.metrics import Counted, Metric
from rolloutpool_common.security.api_keys import GUEST

V1 = "/rollout"
BATCHES = "/v1/batches"
OSMOSIS = {"rollout_id": "o1", "chat_completions_url": "http://127.0.0.1:9/v1/chat/completions", "initial_messages": []}
JSON = {"Content-Type": "application/json"}


class Passed:
    """Stands in for `HotRoutes`, so that FastAPI answers everything."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)


class Noted(HotRoutes):
    """Counts what is left to FastAPI."""

    left = 0

    def __init__(self, app: ASGIApp) -> None:
        async def counting(scope: Scope, receive: Receive, send: Send) -> None:
            Noted.left += scope["type"] == "http"
            await app(scope, receive, send)

        super().__init__(counting)


@dataclass(frozen=True)
class Odd:
    """A request as it goes over the wire."""

    name: str
    method: str
    target: str
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    as_: str | None = "ann"
    length: bool = True
    parts: tuple[bytes, ...] = field(default=())
    """Sent in chunks instead of `body`."""

    def wire(self) -> bytes:
        lines = [f"{self.method} {self.target} HTTP/1.1", "Host: 127.0.0.1", "Connection: close"]
        lines += [f"{name}: {value}" for name, value in (auth(self.as_) if self.as_ else {}).items()]
        lines += [f"{name}: {value}" for name, value in self.headers]
        body = self.body
        if self.parts:
            lines.append("Transfer-Encoding: chunked")
            body = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in self.parts) + b"0\r\n\r\n"
        elif self.length and (body or self.method == "POST"):
            lines.append(f"Content-Length: {len(body)}")
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def v1(**changes: Any) -> bytes:
    return orjson.dumps(v1_request(rollout_id="known", **changes))


def post(name: str, target: str, body: bytes, *headers: tuple[str, str], **how: Any) -> Odd:
    return Odd(name, "POST", target, body, (*JSON.items(), *headers), **how)


def odd_requests(batch_id: str) -> list[Odd]:
    one = orjson.dumps(batch(1))
    results = f"{BATCHES}/{batch_id}/results"
    paths = [
        Odd(f"{method} {target}", method, target, v1() if method == "POST" else b"", tuple(JSON.items()))
        for method in ("POST", "GET", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH", "BREW")
        for target in (V1, f"{V1}/", f"/{V1}", "/%72ollout", "/rollout%2F", "/Rollout", f"{V1}?x=1", "/rollout%0A")
    ]
    paths += [
        Odd(f"{method} {target}", method, target, one if method == "POST" else b"", tuple(JSON.items()))
        for method in ("GET", "HEAD", "OPTIONS", "DELETE", "POST")
        for target in (
            *(f"{BATCHES}/", f"/{BATCHES}", "/v1//batches", "/v1/./batches"),
            *(results, f"{results}/", f"{BATCHES}//results", f"{BATCHES}/{batch_id}//results", f"{results}%0A"),
            *(f"{BATCHES}/%62{batch_id[1:]}/results", f"{BATCHES}/nobody/results", f"{BATCHES}/a%2Fb/results"),
            f"{BATCHES}/{'b' * 3000}/results",
        )
    ]
    queries = [
        *("limit=5", "limit=%35", "limit=0", "limit=1000", "limit=1001", "limit=05", "limit=5.0", "limit=", "limit=+5"),
        *("limit=x", "limit=5&limit=6", "limit", "LIMIT=5", "cursor=0", "cursor=", "cursor=-", "cursor=1.2-3"),
        *("cursor=0.0-0", "cursor=x", "wait=0", "wait=0.0", "wait=60", "wait=60.5", "wait=-1", "wait=nan", "wait=1e1"),
        *("format=json", "format=ndjson", "format=xml", "view=summary", "view=full", "view=all", "foo=1", "&", "&&x"),
        *("cursor=0&limit=1&wait=1&format=ndjson&view=full", "limit=1&foo=2", "limit=1;wait=2", "cursor=%00", "a=%ff"),
    ]
    reads = [Odd(f"results?{query}", "GET", f"{results}?{query}") for query in queries]
    accepts = ("application/x-ndjson", "application/json", "*/*", "", "\xe9", "text/html, application/x-ndjson;q=0.1")
    reads += [Odd(f"accept {accept}", "GET", results, headers=(("Accept", accept),)) for accept in accepts]
    reads += [Odd(f"results as {who}", "GET", results, as_=who) for who in ("ann-read", "bob", "boss", None)]
    kinds = [
        *("application/json", "application/json; charset=utf-8", "Application/JSON", "application/problem+json"),
        *(
            "text/plain",
            "application/x-www-form-urlencoded",
            "",
            "application/json, text/plain",
            "application/json;",
            ";",
        ),
    ]
    bodies: list[bytes] = [
        *(b"", b"{}", b"[]", b"null", b"NaN", b'{"a":', b"\xff", b'\xef\xbb\xbf{"a":1}', b'{"a":1e999}', b"[" * 300),
        *(b'{"rollout_id":"known","rollout_id":"other"}', v1(max_turns=7).replace(b":7", b":" + b"7" * 30)),
        *(v1(messages=[]), v1(max_turns="x"), v1(server_url="ftp://x"), v1(server_url="http://[::1"), v1(extra=1)),
        *(v1(callback_api_key="a\nb"), v1(tokenizer_name=None), v1(sampling_params={"seed": 2**63}), b" " + v1()),
        *(orjson.dumps(OSMOSIS), orjson.dumps(OSMOSIS | {"server_url": "http://127.0.0.1"}), b'"initial_messages"'),
        *(v1(metadata={"initial_messages": 1}), v1(messages=[{"role": "user", "content": "x" * 70_000}])),
        *(one, orjson.dumps(batch(0)), orjson.dumps(batch(1, labels={"a": 1})), orjson.dumps({**batch(1), "x": 2})),
    ]
    posts = [
        post(f"{target}: {body[:40]!r} as {who}", target, body, as_=who)
        for target in (V1, BATCHES)
        for body in bodies
        for who in ("ann", "ann-read")
    ]
    posts += [
        Odd(f"{target} of kind {kind!r}", "POST", target, body, (("Content-Type", kind),))
        for target, body in ((V1, v1()), (BATCHES, one))
        for kind in kinds
    ]
    for target, body in ((V1, v1()), (BATCHES, one)):
        posts += [
            Odd(f"{target} without a kind", "POST", target, body),
            post(f"{target} twice a kind", target, body, ("Content-Type", "text/plain")),
            post(f"{target} compressed", target, body, ("Content-Encoding", "gzip")),
            post(f"{target} in parts", target, b"", parts=(body[:7], body[7:])),
            post(f"{target} as nobody", target, body, as_=None),
            post(f"{target} as boss", target, body, as_="boss"),
            post(f"{target} with a wrong key", target, body, ("Authorization", "Bearer wrong"), as_=None),
            post(f"{target} of another site", target, body, ("Origin", "http://evil.example"), as_=None),
            post(f"{target} of a length that is none", target, body, ("Content-Length", "x"), length=False),
        ]
    posts.append(post("an escaped slash", "/v1%2Fbatches", one))
    names = ("", "k" * 255, "k" * 256, "caf\xe9", "a, b", " ")
    posts += [post(f"key {name[:9]!r}", BATCHES, one, ("Idempotency-Key", name)) for name in names]
    return [*paths, *reads, *posts]


@dataclass
class Side:
    """One of the two applications."""

    url: str
    counted: Counted

    async def answer(self, odd: Odd) -> tuple[bytes, dict[str, str], bytes, Any, Any]:
        """Status line, headers, body, what was counted and what the audit says."""
        host, port = self.url.removeprefix("http://").split(":")
        with capture_logs() as logs:
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(odd.wire())
            async with asyncio.timeout(30):
                raw = await reader.read()
            writer.close()
        head, _, body = raw.partition(b"\r\n\r\n")
        status, *lines = head.split(b"\r\n")
        headers = dict(line.decode("latin-1").split(": ", 1) for line in lines)
        headers.pop("date", None)
        acts = [log for log in logs if log["event"] == "admin_action"]
        return status, headers, body, sorted(self.counted.rows()), acts


def comparable(answer: tuple[Any, ...]) -> str:
    """An answer without what differs each time: ids that the pool makes, tokens of leases, lengths of both."""
    text = re.sub(r"b[0-9a-f]{32}", "BATCH", repr(answer))
    return re.sub(r'("polling_lease_token":)"[^"]*"', r"\1TOKEN", text)


@contextlib.asynccontextmanager
async def both(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Side, Side, httpx.AsyncClient]]:
    """The application with `HotRoutes`, and without."""
    # One that a test declares is no metric of the pool.
    monkeypatch.setattr(Metric, "all", [*Metric.all])
    counted = Counted("requests", "", "route", "method", "code")
    monkeypatch.setattr(request_metrics, "HTTP_REQUESTS", counted)
    async with contextlib.AsyncExitStack() as opened:
        sides = []
        for kind in (Noted, Passed):
            monkeypatch.setattr(app, "HotRoutes", kind)
            client = await opened.enter_async_context(shared_api(redis_url))
            sides.append((Side(str(client.base_url).rstrip("/"), counted), client))
        yield sides[0][0], sides[1][0], sides[0][1]


async def end_known(client: httpx.AsyncClient, worker: ScriptedWorker, headers: dict[str, str], owner: str) -> None:
    """Has one caller's rollout `known` run to its end: who posts it again joins it."""
    posted = asyncio.create_task(client.post(V1, json=v1_request(rollout_id="known"), headers=headers))
    await worker.end(await until(lambda: worker.store.rollouts.find("known", owner)))
    assert (await posted).json()["status"] == "COMPLETED"


async def test_odd_requests_are_answered_as_by_fastapi(
    redis_url: str, worker: ScriptedWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with both(redis_url, monkeypatch) as (hot, plain, client):
        accepted = (await client.post(BATCHES, json=batch(3), headers=auth("ann"))).json()
        for uid in accepted["rollouts"]:
            await worker.end(uid)
        for headers, owner in ((auth("ann"), "ann"), (auth("boss"), "boss"), ({}, GUEST)):
            await end_known(client, worker, headers, owner)
        differ = []
        for odd in odd_requests(accepted["batch_id"]):
            # What is new is accepted once, so that both meet what is there.
            await hot.answer(odd)
            # On a loaded machine a request may be counted after the next one was answered; what differs differs always.
            for _ in range(3):
                one, other = comparable(await hot.answer(odd)), comparable(await plain.answer(odd))
                if one == other:
                    break
            else:
                differ.append((odd.name, one, other))
        assert differ == []


async def test_plain_requests_are_not_left_to_fastapi(
    redis_url: str, worker: ScriptedWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with both(redis_url, monkeypatch) as (_, _, client):
        Noted.left = 0
        headers = {**auth("ann"), "Idempotency-Key": "once"}
        accepted = (await client.post(BATCHES, json=batch(1), headers=headers)).json()
        await worker.end(accepted["rollouts"][0])
        await end_known(client, worker, auth("ann"), "ann")
        path = f"{BATCHES}/{accepted['batch_id']}/results"
        query: dict[str, Any] = {"cursor": "0", "limit": 5, "wait": 0.5, "format": "ndjson", "view": "full"}
        for params in ({}, query):
            assert (await client.get(path, params=params, headers=auth("ann"))).status_code == 200
        # Refused by the routes' own functions.
        assert (await client.post(BATCHES, json=batch(0), headers=auth("ann"))).status_code == 422
        assert (await client.get(f"{BATCHES}/b{'0' * 32}/results", headers=auth("ann"))).status_code == 404
        assert Noted.left == 0
        assert (await client.post(V1, json=v1_request(max_turns=0), headers=auth("ann"))).status_code == 422
        assert Noted.left == 1
