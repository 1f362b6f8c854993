"""HotRoutes: the three requests that every rollout is made of, without FastAPI's way to their functions.

`POST /rollout`, `POST /v1/batches` and `GET /v1/batches/{batch_id}/results` are dispatched here, behind the check
of the key, the audit, the limits of bodies and the metrics:

1. A request whose method and path are exactly those of a route, and whose caller may use it, is looked at here.
2. If its headers, query and body are *plain*, as clients write them, the route's own function is called with what they
   say. It is the function that FastAPI calls and describes, so there is no second version of any check or answer.
3. Anything else goes on to FastAPI, with the body that was read: another content type, a body that is no valid rollout,
   a query with an escape or an unknown word. So each refusal is worded by FastAPI alone.
4. An error of the function is answered by the application's own handlers.

Example: `GET /v1/batches/b1/results?limit=5` is answered here, `?limit=%35` and `?limit=0` are left to FastAPI, which
answers the first in the same way and the second with a 422.
"""

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from fastapi import Request, Response
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from rolloutpool_api.access import Principal
from rolloutpool_api.body import off_loop, parse, replay
from rolloutpool_api.routes.batches import ResultsQuery, batch_results, known_batch, submit_batch
from rolloutpool_api.routes.by_wire import names_other_wire
from rolloutpool_api.routes.rollouts import run_rollout
from rolloutpool_api.services import ApiServices
from rolloutpool_common.protocol.v1.request import RolloutRequest
from rolloutpool_common.security.api_keys import KeyScope

_JSON = frozenset({None, b"application/json", b"application/json; charset=utf-8"})
_RESULTS = re.compile(r"/v1/batches/([^/\n]+)/results")
_QUERY: Mapping[str, tuple[re.Pattern[str], Callable[[str], Any]]] = {
    "cursor": (re.compile(r"[0-9.-]+"), str),
    "limit": (re.compile(r"[1-9][0-9]{0,2}|1000"), int),
    "wait": (re.compile(r"[1-5]?[0-9](\.[0-9]{1,6})?|60"), float),
    "format": (re.compile("json|ndjson"), str),
    "view": (re.compile("full|summary"), str),
}
"""What a plain query may say, and how it is read."""


@dataclass(frozen=True)
class _Call:
    """A request on its way to a route's function."""

    request: Request
    headers: Mapping[bytes, bytes]
    """The first of each name, as FastAPI takes it."""
    services: ApiServices
    caller: Principal


@dataclass(frozen=True)
class _NotPlain:
    """The request is FastAPI's."""

    body: bytes | None = None
    """Where it was read."""


_Answer = Callable[[_Call], Awaitable[Response | _NotPlain]]


@dataclass(frozen=True)
class _Route:
    """Holds what metrics and audit read of a request's route."""

    path: str
    endpoint: Callable[..., Any]
    needs: KeyScope
    answer: _Answer


async def _run_rollout(call: _Call) -> Response | _NotPlain:
    if call.headers.get(b"content-type") not in _JSON or b"content-encoding" in call.headers:
        return _NotPlain()
    body = await call.request.body()
    # A body of another wire, or of v1 with such a word in it.
    if names_other_wire(body):
        return _NotPlain(body)
    try:
        request = await off_loop(len(body), lambda: RolloutRequest.model_validate(parse(body)))
    # pydantic's error is one.
    except ValueError:
        return _NotPlain(body)
    return await run_rollout(request, call.services, call.caller, call.request)


async def _submit_batch(call: _Call) -> Response | _NotPlain:
    if call.request.scope["query_string"]:
        return _NotPlain()
    key = call.headers.get(b"idempotency-key")
    if key is None:
        return await submit_batch(call.request, call.services, call.caller)
    if not 1 <= len(key) <= 255:
        return _NotPlain()
    return await submit_batch(call.request, call.services, call.caller, key.decode("latin-1"))


async def _batch_results(call: _Call, *, batch_id: str) -> Response | _NotPlain:
    query = _plain_query(call.request.scope["query_string"].decode("latin-1"))
    if query is None:
        return _NotPlain()
    accept = call.headers.get(b"accept", b"").decode("latin-1")
    known = await known_batch(batch_id, call.services, call.caller)
    return await batch_results(known, call.services, call.caller, ResultsQuery(**query), accept)


def _plain_query(text: str) -> dict[str, Any] | None:
    """Reads a query; None where it says anything that is not in `_QUERY`, or says it twice."""
    found: dict[str, Any] = {}
    for part in text.split("&") if text else ():
        name, _, value = part.partition("=")
        pattern, read = _QUERY.get(name, (None, str))
        if pattern is None or name in found or not pattern.fullmatch(value):
            return None
        found[name] = read(value)
    return found


_POSTS = {
    "/rollout": _Route("/rollout", run_rollout, KeyScope.SUBMIT, _run_rollout),
    "/v1/batches": _Route("/v1/batches", submit_batch, KeyScope.SUBMIT, _submit_batch),
}


def _route_of(scope: Scope) -> tuple[_Route, dict[str, str]] | None:
    # No server of ours serves below a path of its own; what another one would do there is FastAPI's.
    if scope["type"] != "http" or scope.get("root_path"):
        return None
    if scope["method"] == "POST":
        post = _POSTS.get(scope["path"])
        return None if post is None else (post, {})
    if scope["method"] == "GET" and (found := _RESULTS.fullmatch(scope["path"])):
        answer = partial(_batch_results, batch_id=found[1])
        return _Route("/v1/batches/{batch_id}/results", batch_results, KeyScope.READ, answer), {"batch_id": found[1]}
    return None


class HotRoutes:
    """Answers plain requests to the three routes, and gives all others to the application (ASGI)."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Decides by method, path and caller."""
        found = _route_of(scope)
        if found is None or not scope["state"]["caller"].may(found[0].needs):
            await self._app(scope, receive, send)
            return
        route, params = found
        # For the metrics and the audit, as FastAPI's router would note it.
        scope.update(route=route, endpoint=route.endpoint, path_params=params)
        api = scope["app"]
        # The names are lower case. Of a header that comes twice, the first counts.
        headers = dict(reversed(scope["headers"]))
        call = _Call(Request(scope, receive), headers, api.state.services, scope["state"]["caller"])
        try:
            answer = await route.answer(call)
        except Exception as error:
            answered = _raising(error, api.exception_handlers)
            await answered(scope, receive, send)
            return
        if isinstance(answer, _NotPlain):
            await self._app(scope, receive if answer.body is None else replay(answer.body, receive), send)
        else:
            await answer(scope, receive, send)


def _raising(error: Exception, handlers: Mapping[Any, Any]) -> ASGIApp:
    """Makes an application that only fails, and answers as FastAPI does then."""

    async def fail(scope: Scope, receive: Receive, send: Send) -> None:
        raise error

    # What nobody has foreseen is answered further out.
    return ExceptionMiddleware(fail, {kind: handler for kind, handler in handlers.items() if kind is not Exception})
