"""The audit: a line of the log, `admin_action`, for each act of a key with the scope `admin`, refused ones too.

1. A request that changes something is an act, with whichever route; so a new route can't be left out by oversight. So
   is a look at evidence, which nobody else may read. What such a key submits is work like any other's, and no act.
2. The line has the name of the key, what was done, the ids in the path, and the outcome with its HTTP status. It has no
   body, no header and no key.
3. A key without the scope that tries what takes it leaves a line too.

The reload of the keys' file is an act of whoever wrote the file, and has a line as well (`key_ring.py`).
"""

from urllib.parse import parse_qs

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rolloutpool_api.access import Principal
from rolloutpool_common.security.api_keys import KeyScope

_log = structlog.stdlib.get_logger(__name__)

NO_ACTS = frozenset({"submit_batch", "run_rollout", "fork_rollout", "preflight"})
"""Submits, and a question."""
READS = frozenset({"evidence"})
LONGEST_ID = 256
TRUE = frozenset({"true", "1", "yes", "on", "t", "y"})
"""What a query parameter may say for yes."""


class Audit:
    """Writes the lines; a part of the application (ASGI) that is inside the check of the key."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on, and notes it when it was answered."""
        caller: Principal | None = scope.get("state", {}).get("caller") if scope["type"] == "http" else None
        # Without keys everybody on this machine may do everything, and has no name.
        if caller is None or caller.key is None:
            return await self._app(scope, receive, send)
        status = 500

        async def note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, note)
        finally:
            _note_act(scope, caller.name, KeyScope.ADMIN in caller.scopes, status)


def _note_act(scope: Scope, key: str, is_admin: bool, status: int) -> None:
    # The router notes it in the scope, which all parts of the application share.
    name = getattr(scope.get("endpoint"), "__name__", None)
    is_act = name in READS if scope["method"] in ("GET", "HEAD") else name not in NO_ACTS
    if name is None or not is_act or not (is_admin or status == 403):
        return
    purges = parse_qs(scope["query_string"].decode("latin-1")).get("purge", [""])[-1].lower() in TRUE
    _log.warning(
        "admin_action",
        key=key,
        action="purge_batch" if name == "cancel_batch" and purges else name,
        target={part: str(value)[:LONGEST_ID] for part, value in scope.get("path_params", {}).items()},
        outcome="ok" if status < 400 else "refused" if status < 500 else "failed",
        status=status,
    )
