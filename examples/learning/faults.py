"""Faults on purpose: an endpoint some of whose calls fail for good, whatever the policy does.

A call's fate follows from its key, so it fails again when it is asked again. The longer a rollout, the more calls it
makes, and the likelier it is to be lost: failures of the infrastructure are not spread evenly over what policies do.
"""

import hashlib

from starlette.types import ASGIApp, Receive, Scope, Send

_BODY = b'{"error":{"type":"injected","message":"this call was chosen to fail"}}'


class FaultyEndpoint:
    """Passes calls on to an app, and answers some with 410: a failure of the infrastructure that is not retried."""

    def __init__(self, app: ASGIApp, share: float) -> None:
        self._app, self.share = app, share
        self.failed = 0
        """How many calls were refused, repeated ones included."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one connection, as ASGI defines it."""
        key = dict(scope.get("headers", ())).get(b"idempotency-key", b"")
        if scope["type"] != "http" or not key or not fails(key, self.share):
            await self._app(scope, receive, send)
            return
        self.failed += 1
        headers = [(b"content-type", b"application/json"), (b"x-turn-key", key)]
        await send({"type": "http.response.start", "status": 410, "headers": headers})
        await send({"type": "http.response.body", "body": _BODY})


def fails(key: bytes, share: float) -> bool:
    """Tells whether a call fails.

    Args:
        key: Its Idempotency-Key, which names rollout and turn.
        share: Of all calls, 0 to 1.
    """
    # The part after the turn says which mask is tried; it must not change the call's fate.
    turn = b"/".join(key.split(b"/")[:2])
    return int.from_bytes(hashlib.blake2b(turn, digest_size=8).digest(), "big") < share * 2**64
