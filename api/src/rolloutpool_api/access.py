"""Who calls, and what they may do.

`AuthMiddleware` decides before the body is read, in this order:

1. A request with a known key becomes a `Principal` with that key's name and permissions. An unknown or expired key is a
   401. A key that ends while a read waits with it gets 401 there too; an event stream looks by itself (`events.py`).
2. `OPEN_PATHS` need no key. Every other path is closed, so a new route can't be open by oversight.
3. If the API has no keys, it listens on loopback only (see `settings`), and every local caller may do everything.
4. `V1_CALLS` need no key from loopback or from ROLLOUTPOOL_V1_NETWORKS, because protocol v1's trainers have none.
5. Everything else is a 401.

A route then demands a permission by the type of its `caller` parameter: `Reader`, `Submitter`, `Admin`. A key without
it gets a 403.

A browser near the API also runs code of other sites. So a caller without a key (steps 3 and 4) must not send a foreign
`Origin`, and a local one must address the API by a loopback name. Otherwise a web page could call the API through the
browser of its visitor.
"""

import ipaddress
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any
from urllib.parse import urlsplit

import structlog
from fastapi import Depends, Request
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rolloutpool_api.errors import ApiError, Forbidden, KeyRequired, answer_error
from rolloutpool_api.key_ring import KeyRing
from rolloutpool_api.open_files import DOCS_PATHS, UI_PATHS
from rolloutpool_api.settings import ApiSettings
from rolloutpool_common.security.api_keys import GUEST, ApiKey, KeyScope
from rolloutpool_common.security.targets import as_address, is_loopback

_log = structlog.stdlib.get_logger(__name__)

OPEN_PATHS = frozenset({"/health", "/livez", "/readyz", "/openapi.json", *DOCS_PATHS, *UI_PATHS})
"""Paths whose answers say nothing about others' work; with a key, `/health` says how many rollouts of one's own run."""
V1_CALLS = frozenset({("POST", "/rollout"), ("GET", "/tools")})
"""What protocol v1's trainers call; they have no keys."""


@dataclass(frozen=True)
class Principal:
    """A caller who was let in: the name that owns their data, and what they may do with it."""

    name: str
    """Owner of the data: batches, rollouts, idempotency keys and rollout ids of different names are kept apart."""
    scopes: frozenset[KeyScope]
    """What they may do."""
    key: ApiKey | None = None
    """The key that they came with."""

    def may(self, scope: KeyScope) -> bool:
        """Tells whether they have this permission, or `admin`, which has all."""
        return scope in self.scopes or KeyScope.ADMIN in self.scopes

    def must(self, scope: KeyScope) -> None:
        """Demands a permission for what a route is about to do."""
        if not self.may(scope):
            raise Forbidden(f"this key may not do this: it lacks the scope `{scope}`")

    @property
    def sees(self) -> str | None:
        """The name whose data they see, which is their own; None means everybody's, for `admin`."""
        return None if KeyScope.ADMIN in self.scopes else self.name


_UNKNOWN_KEY = "this key is unknown, or was revoked: send a key of this pool as `Authorization: Bearer KEY`"
_EVERYTHING = Principal(GUEST, frozenset(KeyScope))
_V1_GUEST = Principal(GUEST, frozenset({KeyScope.SUBMIT, KeyScope.READ}))


class AuthMiddleware:
    """Refuses every request without a valid caller, with 401 or 403."""

    def __init__(self, app: ASGIApp, *, settings: ApiSettings, keys: KeyRing) -> None:
        self._app = app
        self._keys = keys
        self._at_home = is_loopback(settings.api_host)
        self._networks = settings.v1_networks

    async def __call__(self, connection: Scope, receive: Receive, send: Send) -> None:
        """Finds out who calls, and notes it in the request's state (ASGI)."""
        # WebSockets too: only the server's own start and stop have no caller.
        if connection["type"] != "lifespan":
            try:
                caller = self._caller(connection)
            except ApiError as error:
                _log.info("refused", status=error.status, peer=(connection.get("client") or ("unknown",))[0])
                await answer_error(connection["path"], error)(connection, receive, send)
                return
            connection.setdefault("state", {})["caller"] = caller
            if caller is not None and caller.key is not None and connection.get("method") == "GET":
                send = self._unless_revoked(caller.key, connection, receive, send)
        await self._app(connection, receive, send)

    def _caller(self, connection: Scope) -> Principal | None:
        """Decides by the steps above; None on open paths only. Raises `KeyRequired` or `Forbidden`."""
        headers = Headers(scope=connection)
        at = connection["path"]
        authorization = headers.get("authorization")
        required = self._keys.required
        if required and authorization is not None:
            kind, _, key = authorization.partition(" ")
            found = self._keys.find(key.strip()) if kind.lower() == "bearer" else None
            if found is not None and not found.is_expired():
                return Principal(found.name, found.scopes, found)
            # An open path needs no key, so a wrong one is ignored there: a probe with an outdated key gets its answer.
            if at not in OPEN_PATHS:
                raise KeyRequired(_UNKNOWN_KEY if found is None else _expiry_of(found))
        if at in OPEN_PATHS:
            return None
        v1 = (connection.get("method"), at) in V1_CALLS
        if not required or (v1 and self._at_home):
            _check_site(headers)
            return _V1_GUEST if required else _EVERYTHING
        # The Host is not checked here: callers on other machines use a name of this one that we do not know.
        if v1 and self._is_in_networks(connection):
            _check_origin(headers)
            return _V1_GUEST
        raise KeyRequired

    def _unless_revoked(self, key: ApiKey, connection: Scope, receive: Receive, send: Send) -> Send:
        """Makes a `send` that answers 401 in the place of what was read for a key that has ended meanwhile."""
        ended = False

        async def checked(message: Message) -> None:
            nonlocal ended
            if message["type"] == "http.response.start" and not self._keys.holds(key):
                ended = True
                _log.info("key ended during a request", key=key.name, path=connection["path"])
                error = KeyRequired(_expiry_of(key) if key.is_expired() else _UNKNOWN_KEY)
                await answer_error(connection["path"], error)(connection, receive, send)
            elif not ended:
                await send(message)

        return checked

    def _is_in_networks(self, connection: Scope) -> bool:
        peer = as_address((connection.get("client") or ("", 0))[0])
        # A socket for IPv6 shows a caller with IPv4 as ::ffff:a.b.c.d, which would be in no IPv4 network.
        if isinstance(peer, ipaddress.IPv6Address) and peer.ipv4_mapped is not None:
            peer = peer.ipv4_mapped
        return peer is not None and any(peer in network for network in self._networks)


def _expiry_of(key: ApiKey) -> str:
    ended = f"{key.expires:%Y-%m-%d %H:%M:%S} UTC"
    return f"this key of {key.name!r} has expired, at {ended}: ask your operator for a new one"


def _check_site(headers: Headers) -> None:
    """Refuses a Host that is no loopback name: a site can point its own name here to get past the same-origin rule."""
    if not _names_loopback(headers.get("host", "")):
        raise Forbidden(
            "without a key this API answers to localhost, 127.0.0.1 and [::1] only; call it so, or give it keys "
            "(ROLLOUTPOOL_API_KEYS)"
        )
    _check_origin(headers)


@lru_cache(maxsize=64)
def _names_loopback(host: str) -> bool:
    try:
        # `urlsplit` knows ports and brackets; it raises ValueError for a bracket that is never closed.
        return is_loopback(urlsplit(f"//{host}").hostname or "")
    except ValueError:
        return False


def _check_origin(headers: Headers) -> None:
    # Programs send no Origin. A sandboxed page sends `null`, which equals no Host and is refused.
    origin = headers.get("origin")
    if origin is not None and origin.partition("://")[2] != headers.get("host"):
        raise Forbidden("a page of another site may not call this API without a key")


def _who_may(scope: KeyScope | None) -> Callable[[Request], Coroutine[Any, Any, Principal]]:
    # Async, although it waits for nothing: FastAPI would run a plain function in a thread, for each request.
    async def check(request: Request) -> Principal:
        caller: Principal = request.state.caller
        if scope is not None:
            caller.must(scope)
        return caller

    return check


Anybody = Annotated[Principal, Depends(_who_may(None))]
"""Any caller, whatever their permissions."""
Submitter = Annotated[Principal, Depends(_who_may(KeyScope.SUBMIT))]
Reader = Annotated[Principal, Depends(_who_may(KeyScope.READ))]
MetricsReader = Annotated[Principal, Depends(_who_may(KeyScope.METRICS))]
Admin = Annotated[Principal, Depends(_who_may(KeyScope.ADMIN))]
