"""How connections to trainers and webhooks are made: to an address that was checked, never to a name.

A name is resolved once per connection, every address of it is checked, and one of those very addresses is connected
to: a name server that gives another answer a moment later changes nothing. What was found holds for a few seconds, so
that a thousand rollouts that start at once ask once. TLS goes on to verify the name.
"""

import asyncio
import socket
import time
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

import httpcore

from rolloutpool_common.addresses import Targets, as_address
from rolloutpool_common.errors import TargetRefused

__all__ = ["Connector", "Resolve", "resolve"]

Resolve = Callable[[str], Coroutine[Any, Any, list[str]]]
"""From a name to its addresses."""

FRESH_SECONDS = 5.0
MAX_NAMES = 4096


async def resolve(name: str) -> list[str]:
    """What the system's resolver says, without repeats; raises OSError, or UnicodeError for what can be no name."""
    found = await asyncio.get_running_loop().getaddrinfo(name, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in found))


class Connector(httpcore.AsyncNetworkBackend):
    """Connects where it is allowed; shared by all clients of a process."""

    def __init__(self, targets: Targets, resolve: Resolve = resolve) -> None:
        self._targets = targets
        self._resolve = resolve
        self._inner = httpcore.AnyIOBackend()
        self._verdicts: dict[tuple[str, int], str | None] = {}
        self._known: dict[str, tuple[float, asyncio.Task[list[str]]]] = {}

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """A connection to the first address that takes it; raises `TargetRefused` before any is tried.

        Raises OverflowError or UnicodeError for a port or name that cannot be.
        """
        if not 0 < port < 65536:
            raise OverflowError(f"port {port}")
        start = time.monotonic()
        if fault := self._refuse(host, port):
            raise TargetRefused(fault)
        if as_address(host) is not None:
            addresses = [host]
        else:
            addresses = await self._checked(host, port, timeout)
        for left in range(len(addresses), 0, -1):
            # An address that is silent may not use up the time of the others.
            share = None if timeout is None else max(timeout - (time.monotonic() - start), 0.001) / left
            try:
                return await self._inner.connect_tcp(
                    addresses[-left], port, share, local_address=local_address, socket_options=socket_options
                )
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                if left == 1:
                    raise
        raise httpcore.ConnectError(f"{host} has no address")

    async def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """No URL leads to one."""
        raise TargetRefused("unix sockets are never called")

    async def sleep(self, seconds: float) -> None:
        """As asyncio's."""
        await asyncio.sleep(seconds)

    def _refuse(self, host: str, port: int) -> str | None:
        """As `Targets.refuse_host`, once: this is asked again for each connection to the same few hosts."""
        if (host, port) not in self._verdicts:
            if len(self._verdicts) >= MAX_NAMES:
                self._verdicts.clear()
            self._verdicts[host, port] = self._targets.refuse_host(host, port)
        return self._verdicts[host, port]

    async def _checked(self, host: str, port: int, timeout: float | None) -> list[str]:
        try:
            async with asyncio.timeout(timeout):
                found = await self._addresses(host)
        except TimeoutError:
            raise httpcore.ConnectTimeout(f"no address of {host} within {timeout:g} s") from None
        except OSError as error:
            raise httpcore.ConnectError(f"no address of {host}: {error.strerror}") from error
        for text in found:
            address = as_address(text)
            fault = "its zone is unknown" if address is None else self._targets.refuse_address(address, port)
            if fault:
                raise TargetRefused(f"{host} resolves to an address that may not be called: {fault}")
        return found

    async def _addresses(self, name: str) -> list[str]:
        now = time.monotonic()
        until, lookup = self._known.get(name, (0.0, None))
        if lookup is None or until < now or (lookup.done() and (lookup.cancelled() or lookup.exception())):
            if len(self._known) >= MAX_NAMES:
                self._known.clear()
            lookup = asyncio.create_task(self._resolve(name))
            self._known[name] = (now + FRESH_SECONDS, lookup)
        # Shared with others who ask for the name: one who gives up must not end it for them.
        return await asyncio.shield(lookup)
