"""Calls to a server: its cookies, what travels with each request, and odd replies."""

from collections.abc import Callable
from typing import Any

import orjson
import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from rolloutpool_common.errors import EnvironmentFault
from rolloutpool_common.security.targets import Targets
from rolloutpool_trainer.endpoint.server import serve_callback
from rolloutpool_worker.capabilities.foreign_environments.connections import ServerConnections
from rolloutpool_worker.capabilities.foreign_environments.server_calls import ServerCalls


async def asked(answer: Callable[[int, Request], Response], times: int) -> list[tuple[dict[str, str], Any]]:
    """Posts so many times; what the server got."""
    got: list[tuple[dict[str, str], Any]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        got.append((dict(request.headers), orjson.loads(await request.body())))
        await answer(len(got), request)(scope, receive, send)

    connections = ServerConnections(Targets.loopback())
    with serve_callback(app, [0]) as served:
        calls = ServerCalls(connections, served.url, {"X-Key": "ключ"}, "b-0", 3)
        try:
            for number in range(times):
                reply = await calls.post("path", {"n": number})
                assert (reply.status, reply.text) == (200, "fine")
        finally:
            await connections.aclose()
    return got


async def test_cookies_are_kept_and_replaced() -> None:
    def answer(number: int, _: Request) -> Response:
        response = PlainTextResponse("fine")
        if number <= 2:
            response.set_cookie("session", f"s{number}", httponly=True)
            response.set_cookie("other", "with space; and more")
        return response

    got = await asked(answer, 3)
    cookies = [headers.get("cookie") for headers, _ in got]
    assert cookies[0] is None
    assert cookies[1] == 'session=s1; other="with space\\073 and more"'
    assert cookies[2] == 'session=s2; other="with space\\073 and more"'


async def test_a_server_that_sets_endless_cookies_is_cut_off() -> None:
    def answer(number: int, _: Request) -> Response:
        response = PlainTextResponse("fine")
        for i in range(20):
            response.set_cookie(f"c{number}-{i}", "x")
        return response

    with pytest.raises(EnvironmentFault, match="it set 60 cookies, at most 50"):
        await asked(answer, 3)


async def test_what_is_no_cookie_is_ignored() -> None:
    def answer(number: int, _: Request) -> Response:
        response = PlainTextResponse("fine")
        response.raw_headers.append((b"set-cookie", b"\xff\xfe=; ;;=,"))
        return response

    got = await asked(answer, 2)
    assert "cookie" not in got[1][0]


async def test_what_is_no_utf8_or_no_json_is_read_all_the_same() -> None:
    connections = ServerConnections(Targets.loopback())

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await Response(b"\xff{")(scope, receive, send)

    with serve_callback(app, [0]) as served:
        reply = await ServerCalls(connections, served.url, {}, "b-0", 1).post("path", None)
    assert (reply.text, reply.document()) == ("\ufffd{", None)
    await connections.aclose()
