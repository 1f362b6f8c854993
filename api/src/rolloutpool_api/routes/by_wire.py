"""The route class of `POST /rollout`: which wire is a body of?"""

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect

from rolloutpool_api.body import StrictRequest, StrictRoute, check_kind, off_loop, parse
from rolloutpool_api.composition import wires
from rolloutpool_api.errors import UnsupportedBody
from rolloutpool_api.other_wire import OtherWire


class RouteByWire(StrictRoute):
    """Protocol v1's `POST /rollout`, which gives the bodies of other wires to their capabilities.

    A body is parsed a second time only where it may be of another wire. Where anything is wrong with it, it is v1's, so
    that v1's errors stay as they are.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Returns a handler that looks at the body before it is validated."""
        v1 = APIRoute.get_route_handler(self)

        async def by_wire(request: Request) -> Response:
            strict = StrictRequest(request.scope, request.receive)
            wire, document = await _look(strict)
            if wire is None:
                return await v1(strict)
            return await wire.accept(request.app.state.services, document, request.state.caller)

        return by_wire


def names_other_wire(body: bytes) -> bool:
    """Whether a body may be of another wire than v1; False spares v1's bodies a second look."""
    return any(mark in body for wire in wires() for mark in wire.marks)


async def _look(request: Request) -> tuple[OtherWire | None, Any]:
    try:
        check_kind(request.headers)
        body = await request.body()
        if not names_other_wire(body):
            return None, None
        document = await off_loop(len(body), lambda: parse(body))
    except (UnsupportedBody, ClientDisconnect, ValueError):
        return None, None
    return next((wire for wire in wires() if wire.takes(document)), None), document
