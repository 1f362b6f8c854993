"""Large bodies: read in another process, so that this one's event loop goes on answering.

1. A request to one of `TAKES_LARGE` whose body is larger than `FROM_BYTES` is not given to this process' application.
   Its body goes into a `Spool` as it comes; at most `AT_ONCE` do so at a time. The others are not read, so their
   callers wait in their own `send`, and no memory is taken.
2. When the body is whole, the request goes to the `BodyProcess`, which runs the same application. So the answer is the
   same as for a small body, and an upload that is slow delays nobody.
3. The answer is passed on in pieces.
4. `POST /rollout` waits for the end of its rollout here, as with a small body, and asks the process for the answer
   then. It takes its slot (MAX_CONCURRENT_ROLLOUTS) before its body is read: until then nothing of it takes memory.

Requests to other paths have bodies of at most `FROM_BYTES` (see `BodyLimit`).
"""

from typing import Any

import orjson
from fastapi import HTTPException
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rolloutpool_api import body, synchronous
from rolloutpool_api.access import Principal
from rolloutpool_api.body_process import ForwardedRequest, ReaderReply, V1Ticket
from rolloutpool_api.errors import ApiError, UnsupportedBody, answer, answer_error, answer_store_error
from rolloutpool_api.services import ApiServices
from rolloutpool_api.spool import Spool
from rolloutpool_common.security.api_keys import KeyScope
from rolloutpool_common.store import StoreError

_V1 = ("POST", "/rollout")
_PICKLED = (
    "type",
    "asgi",
    "http_version",
    "server",
    "client",
    "scheme",
    "root_path",
    "headers",
    "method",
    "path",
    "raw_path",
    "query_string",
)


class LargeBodies:
    """Gives requests with large bodies to the body process, and all others to the application."""

    def __init__(self, app: ASGIApp, *, services: ApiServices, max_bytes: int) -> None:
        self._app = app
        self._services = services
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Decides by the size that is announced, or else by what has come (ASGI)."""
        if scope["type"] != "http" or not self._may_be_large(scope):
            await self._app(scope, receive, send)
            return
        begun = bytearray()
        try:
            if Headers(scope=scope).get("content-length") is None:
                more = True
                while more and len(begun) <= body.FROM_BYTES:
                    message = await _next(receive)
                    begun += message.get("body", b"")
                    more = message.get("more_body", False)
                if not more:
                    await self._app(scope, body.replay(bytes(begun), receive), send)
                    return
            await self._handle(scope, bytes(begun), receive, send)
        except ClientDisconnect:
            # `BodyLimit` has logged it, and there is nobody to answer.
            return
        except HTTPException as error:
            refusal = answer(scope["path"], error.status_code, str(error.detail), headers=error.headers)
            await refusal(scope, receive, send)
        except ApiError as error:
            await answer_error(scope["path"], error)(scope, receive, send)
        except StoreError as error:
            await answer_store_error(scope["path"], error)(scope, receive, send)

    def _may_be_large(self, scope: Scope) -> bool:
        call = (scope["method"], scope["path"])
        if call not in body.TAKES_LARGE:
            return False
        headers = Headers(scope=scope)
        announced = headers.get("content-length")
        # What is too large is refused by the application's first look at it, without being read.
        if announced is not None and not (
            announced.isdecimal() and body.FROM_BYTES < int(announced) <= self._max_bytes
        ):
            return False
        if call == _V1:
            return True
        caller: Principal = scope["state"]["caller"]
        try:
            body.check_kind(headers)
        except UnsupportedBody:
            return False
        # Who may not submit, or sends something else than JSON, is refused by the application before it reads.
        return caller.may(KeyScope.SUBMIT)

    async def _handle(self, scope: Scope, begun: bytes, receive: Receive, send: Send) -> None:
        services = self._services
        if (scope["method"], scope["path"]) != _V1:
            reply, spool = await self._forward(scope, begun, receive)
        else:
            async with services.slots:
                services.raise_if_stopping()
                reply, spool = await self._forward(scope, begun, receive)
                if reply.is_ticket:
                    with spool:
                        ticket = V1Ticket(**orjson.loads(spool.read()))
                    await synchronous.wait_for_end(services, ticket)
                    with Spool.make() as nothing:
                        reply, spool = await services.reader.ask(ticket, nothing)
        with spool:
            await _send(reply, spool, send)

    async def _forward(self, scope: Scope, begun: bytes, receive: Receive) -> tuple[ReaderReply, Spool]:
        """Takes in the body, and has it read; what was accepted is published."""
        services = self._services
        async with services.large_bodies:
            # The process starts while the body comes.
            services.reader.prepare()
            with Spool.make() as spool:
                spool.write(begun)
                more = True
                while more:
                    message = await _next(receive)
                    spool.write(message.get("body", b""))
                    more = message.get("more_body", False)
                known: dict[str, Any] = {key: scope[key] for key in _PICKLED if key in scope}
                known["state"] = {"caller": scope["state"]["caller"]}
                answered = await services.reader.ask(ForwardedRequest(known), spool)
        if answered[0].status == 202:
            services.publish_soon()
        return answered


async def _next(receive: Receive) -> Message:
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientDisconnect
    return message


async def _send(reply: ReaderReply, spool: Spool, send: Send) -> None:
    await send({"type": "http.response.start", "status": reply.status, "headers": reply.headers})
    for piece in spool.pieces():
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})
