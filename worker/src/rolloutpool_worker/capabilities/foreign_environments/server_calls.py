"""Calls to an environment's server, with the session's cookies, and with our error for each failure.

`connections` decides what may be called, and how long a reply may be.
"""

from collections.abc import Mapping
from contextlib import aclosing
from http.cookies import CookieError, SimpleCookie
from typing import Any, NamedTuple

import httpx
import orjson
from pydantic import BaseModel, ConfigDict, Field

from rolloutpool_common.errors import EnvironmentFault
from rolloutpool_common.protocol.checks import CallbackUrl
from rolloutpool_common.protocol.environments import CrashEffect
from rolloutpool_worker.capabilities.foreign_environments.connections import (
    RedirectRefused,
    ReplyTooLarge,
    ServerConnections,
    attempt_headers,
)

MOST_COOKIES = 50


class ServerEntry(BaseModel):
    """Holds what the operator's file says of any server."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    url: CallbackUrl
    headers: dict[str, str] = Field(default_factory=dict, repr=False)
    crash: CrashEffect = CrashEffect.NONE
    places: int | None = Field(default=None, ge=1)


class ServerReply(NamedTuple):
    """Holds what a server has answered."""

    status: int
    body: bytes
    headers: Mapping[str, str]

    @property
    def text(self) -> str:
        """The body; what is no UTF-8 is replaced."""
        return self.body.decode("utf-8", "replace")

    def document(self) -> Any:
        """The body as JSON; None where it is none."""
        try:
            return orjson.loads(self.body)
        except orjson.JSONDecodeError:
            return None


class ServerCalls:
    """One session's calls to its server."""

    def __init__(
        self, connections: ServerConnections, url: str, headers: Mapping[str, str], rollout_uid: str, attempt: int
    ) -> None:
        """Calls nothing yet."""
        self._connections = connections
        self._url = url.rstrip("/")
        self._headers = attempt_headers({**headers, "Content-Type": "application/json"}, rollout_uid, attempt)
        self._cookies: dict[str, str] = {}

    async def post(self, path: str, document: Any) -> ServerReply:
        """Sends a document and reads the whole reply."""
        return await self._send("POST", path, orjson.dumps(document))

    async def get(self, path: str) -> ServerReply:
        """Reads a whole reply; returns and raises as `post`."""
        return await self._send("GET", path, b"")

    async def _send(self, method: str, path: str, content: bytes) -> ServerReply:
        headers = dict(self._headers)
        if self._cookies:
            headers["Cookie"] = "; ".join(f"{name}={value}" for name, value in self._cookies.items())
        try:
            request = httpx.Request(
                method,
                f"{self._url}/{path}",
                headers=httpx.Headers(headers, encoding="utf-8"),
                content=content,
            )
            async with aclosing(await self._connections.send(request)) as response:
                body = b"".join([part async for part in response.aiter_bytes()])
        except ReplyTooLarge as error:
            raise EnvironmentFault(f"{method} /{path}: {error}", retryable=False) from error
        except RedirectRefused as error:
            raise EnvironmentFault(f"{method} /{path}: {error}") from error
        except (httpx.HTTPError, httpx.InvalidURL, OverflowError, UnicodeError) as error:
            raise EnvironmentFault(f"{method} /{path}: no whole answer ({type(error).__name__})") from error
        self._keep_cookies(response)
        return ServerReply(response.status_code, body, response.headers)

    def _keep_cookies(self, response: httpx.Response) -> None:
        for line in response.headers.get_list("set-cookie"):
            try:
                parsed = SimpleCookie(line)
            except CookieError:
                continue
            self._cookies.update({name: morsel.coded_value for name, morsel in parsed.items()})
        if len(self._cookies) > MOST_COOKIES:
            raise EnvironmentFault(f"it set {len(self._cookies)} cookies, at most {MOST_COOKIES} are kept")
