"""The name of the turn on each answer: `X-Turn-Key` repeats the request's `Idempotency-Key`, as it came.

A worker that gets the answer to another request, because a proxy or server between has mixed them up, notices it by
this header. So errors have it too, those of the framework included, and it is added where an answer leaves the app.
"""

from starlette.types import Message, Scope, Send

from rolloutpool_common.protocol.turn_headers import HEADER_IDEMPOTENCY, HEADER_TURN_KEY

_ASKED, _SAID = HEADER_IDEMPOTENCY.lower().encode(), HEADER_TURN_KEY.lower().encode()


def naming_the_turn(scope: Scope, send: Send) -> Send:
    """Returns a `send` that adds the name of the turn to the answer; the same one where a request names no turn."""
    key = next((value for name, value in scope.get("headers", ()) if name.lower() == _ASKED), None)
    if key is None:
        return send

    async def named(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), (_SAID, key)]}
        await send(message)

    return named
