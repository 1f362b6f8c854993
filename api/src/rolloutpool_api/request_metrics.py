"""RequestMetrics: counts the requests of an API process, and how long they took.

A request is named by the template of its route (`/v1/batches/{batch_id}`), so no id becomes a label. Those that wait
for rollouts (long polls, event streams, `POST /rollout`) take as long as the rollouts do; they are counted, and their
seconds are left out.
"""

import time
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rolloutpool_api.body import TAKES_LARGE
from rolloutpool_api.errors import has_v1_shape
from rolloutpool_common.process.metrics import HTTP_REQUESTS, HTTP_SECONDS

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
NO_ROUTE = "none"
"""Stands for requests that no route took: refused ones, and paths where there is nothing."""


class RequestMetrics:
    """The outermost part of the application (ASGI)."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on, and counts it when it was answered."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        start, code = time.perf_counter(), "none"

        async def note(message: Message) -> None:
            nonlocal code
            if message["type"] == "http.response.start":
                code = str(message["status"])
            await send(message)

        try:
            await self._app(scope, receive, note)
        except Exception:
            # The server answers it, outside of all this.
            code = "500" if code == "none" else code
            raise
        finally:
            route, method = _route_of(scope), scope["method"]
            method = method if method in METHODS else "other"
            HTTP_REQUESTS.add(1, route, method, code)
            if not _waits(scope, route):
                HTTP_SECONDS.observe(time.perf_counter() - start, route, method)


def _route_of(scope: Scope) -> str:
    # The router notes it in the scope, which all parts of the application share.
    route: Any = scope.get("route")
    template = getattr(route, "path", None)
    # Another process routes large bodies.
    if template is None and (scope["method"], scope["path"]) in TAKES_LARGE:
        return str(scope["path"])
    return NO_ROUTE if template is None else str(template).replace(":path}", "}")


def _waits(scope: Scope, route: str) -> bool:
    return has_v1_shape(route) or route.endswith("/events") or b"wait" in scope.get("query_string", b"")
