"""Who asks, and what they may do.

Invariant: a request that reaches a route has a `Principal`. Whoever is none is refused before the body is read: 401
without a good key, 403 where a key may not do this. A path is closed unless it is named here, so that a new route
cannot be open by oversight.

Without keys the API listens on loopback alone (see `settings`), and everybody on this machine may do everything; but
a browser on this machine also runs what others wrote, so a guest has to call the machine by a name that is its own,
and come from no other site.
"""

import ipaddress
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import urlsplit

import structlog
from fastapi import Depends, Request
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from rolloutpool_api.errors import ApiError, Forbidden, KeyRequired, answer_error
from rolloutpool_api.settings import ApiSettings
from rolloutpool_common.security.api_keys import GUEST, KeyScope, find_key
from rolloutpool_common.security.targets import as_address, is_loopback

__all__ = ["Admin", "Anybody", "AuthMiddleware", "Principal", "Reader", "Submitter"]

_log = structlog.stdlib.get_logger(__name__)

OPEN_PATHS = frozenset({"/health", "/livez", "/readyz", "/docs", "/docs/oauth2-redirect", "/redoc", "/openapi.json"})
"""What tells nothing of anybody's work."""
V1_CALLS = frozenset({("POST", "/rollout"), ("GET", "/tools")})
"""What protocol v1's trainers call, which have no keys."""


@dataclass(frozen=True)
class Principal:
    """Somebody who may ask."""

    name: str
    """Whose data this is: batches, rollouts, idempotency keys and names are kept apart by it."""
    scopes: frozenset[KeyScope]

    def may(self, scope: KeyScope) -> bool:
        """Whether this scope, or admin, is among theirs."""
        return scope in self.scopes or KeyScope.ADMIN in self.scopes

    def must(self, scope: KeyScope) -> None:
        """Raises `Forbidden` unless they may."""
        if not self.may(scope):
            raise Forbidden(f"this key may not do this: it lacks the scope `{scope}`")

    @property
    def sees(self) -> str | None:
        """Whose data they see; None: everybody's."""
        return None if KeyScope.ADMIN in self.scopes else self.name


_EVERYTHING = Principal(GUEST, frozenset(KeyScope))
_V1_GUEST = Principal(GUEST, frozenset({KeyScope.SUBMIT, KeyScope.READ}))


class AuthMiddleware:
    """Lets nobody pass who is no caller."""

    def __init__(self, app: ASGIApp, *, settings: ApiSettings) -> None:
        self._app = app
        self._keys = settings.api_keys
        self._at_home = is_loopback(settings.api_host)
        self._networks = settings.v1_networks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Notes the caller in the request's state."""
        if scope["type"] != "lifespan":
            try:
                caller = self._caller(scope)
            except ApiError as error:
                _log.info("refused", status=error.status, peer=(scope.get("client") or ("unknown",))[0])
                await answer_error(scope["path"], error)(scope, receive, send)
                return
            scope.setdefault("state", {})["caller"] = caller
        await self._app(scope, receive, send)

    def _caller(self, scope: Scope) -> Principal | None:
        """None on open paths alone; raises `KeyRequired` or `Forbidden`."""
        headers = Headers(scope=scope)
        authorization = headers.get("authorization")
        if self._keys and authorization is not None:
            kind, _, key = authorization.partition(" ")
            found = find_key(self._keys, key.strip()) if kind.lower() == "bearer" else None
            if found is not None:
                return Principal(found.name, found.scopes)
            if scope["path"] not in OPEN_PATHS:
                raise KeyRequired("this key is unknown: send a key of this pool as `Authorization: Bearer KEY`")
        if scope["path"] in OPEN_PATHS:
            return None
        v1 = (scope.get("method"), scope["path"]) in V1_CALLS
        if not self._keys or (v1 and self._at_home):
            _check_site(headers)
            return _V1_GUEST if self._keys else _EVERYTHING
        if v1 and self._is_in_networks(scope):
            _check_origin(headers)
            return _V1_GUEST
        raise KeyRequired

    def _is_in_networks(self, scope: Scope) -> bool:
        peer = as_address((scope.get("client") or ("", 0))[0])
        if isinstance(peer, ipaddress.IPv6Address) and peer.ipv4_mapped is not None:
            peer = peer.ipv4_mapped
        return peer is not None and any(peer in network for network in self._networks)


def _check_site(headers: Headers) -> None:
    """A name that others can point at this machine is how a web page gets past a browser's same-origin rule."""
    try:
        host = urlsplit(f"//{headers.get('host', '')}").hostname or ""
    except ValueError:
        host = ""
    if not is_loopback(host):
        raise Forbidden(
            "without a key this API answers to localhost, 127.0.0.1 and [::1] only; call it so, or give it keys "
            "(ROLLOUTPOOL_API_KEYS)"
        )
    _check_origin(headers)


def _check_origin(headers: Headers) -> None:
    origin = headers.get("origin")
    if origin is not None and origin.partition("://")[2] != headers.get("host"):
        raise Forbidden("a page of another site may not call this API without a key")


def _who_may(scope: KeyScope | None) -> Callable[[Request], Coroutine[Any, Any, Principal]]:
    async def check(request: Request) -> Principal:
        caller: Principal = request.state.caller
        if scope is not None:
            caller.must(scope)
        return caller

    return check


Anybody = Annotated[Principal, Depends(_who_may(None))]
"""Whoever has a key, whatever it is for."""
Submitter = Annotated[Principal, Depends(_who_may(KeyScope.SUBMIT))]
Reader = Annotated[Principal, Depends(_who_may(KeyScope.READ))]
Admin = Annotated[Principal, Depends(_who_may(KeyScope.ADMIN))]
