"""Where connections to trainers and webhooks may go: to an address that was checked, never to a name.

A name is resolved once per connection, every address of it is checked, and one of those very addresses is connected
to: a name server that gives another answer a moment later changes nothing. What was found holds for a few seconds, so
that a thousand rollouts that start at once ask once. TLS goes on to verify the name.
"""

import asyncio
import socket
import time
from collections.abc import Callable, Coroutine

from aiohttp.abc import AbstractResolver, ResolveResult

from rolloutpool_common.errors import TargetRefused
from rolloutpool_common.security.targets import Targets, as_address

__all__ = ["Resolve", "Resolver", "resolve"]

Resolve = Callable[[str], Coroutine[None, None, list[str]]]
"""From a name to its addresses."""

FRESH_SECONDS = 5.0
MAX_NAMES = 4096


async def resolve(name: str) -> list[str]:
    """What the system's resolver says, without repeats; raises OSError, or UnicodeError for what can be no name."""
    found = await asyncio.get_running_loop().getaddrinfo(name, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in found))


class Resolver(AbstractResolver):
    """Finds the addresses that may be called; shared by all calls of a process."""

    def __init__(self, targets: Targets, resolve: Resolve = resolve) -> None:
        self._targets = targets
        self._resolve = resolve
        self._verdicts: dict[tuple[str, int], str | None] = {}
        self._known: dict[str, tuple[float, asyncio.Task[list[str]]]] = {}

    def check(self, host: str, port: int) -> None:
        """Raises `TargetRefused` for what is not listed; of a name, the addresses are still to be checked.

        Raises OverflowError for a port that cannot be.
        """
        if not 0 < port < 65536:
            raise OverflowError(f"port {port}")
        # This is asked again for each call to the same few hosts.
        if (host, port) not in self._verdicts:
            if len(self._verdicts) >= MAX_NAMES:
                self._verdicts.clear()
            self._verdicts[host, port] = self._targets.refuse_host(host, port)
        if fault := self._verdicts[host, port]:
            raise TargetRefused(fault)

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """All addresses of a name; raises `TargetRefused` where one of them may not be called, or OSError."""
        found = await self._addresses(host)
        results: list[ResolveResult] = []
        for text in found:
            address = as_address(text)
            fault = "its zone is unknown" if address is None else self._targets.refuse_address(address, port)
            if address is None or fault:
                raise TargetRefused(f"{host} resolves to an address that may not be called: {fault}")
            kind = socket.AF_INET if address.version == 4 else socket.AF_INET6
            flags = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
            results.append({"hostname": host, "host": text, "port": port, "family": kind, "proto": 0, "flags": flags})
        if not results:
            raise OSError(None, f"{host} has no address")
        return results

    async def close(self) -> None:
        """Ends lookups that nobody waits for any more."""
        for _, lookup in self._known.values():
            lookup.cancel()

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
