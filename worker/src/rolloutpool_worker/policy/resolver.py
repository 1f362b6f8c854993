"""Decides where connections to trainers and webhooks may go: to an address that was checked, never to a bare name.

The danger is DNS rebinding: a name that resolves to a permitted address when it is checked, and to an internal one
when it is connected to a moment later. The steps below leave no such moment:

1. `check` looks at the URL's host and port before each call. A host that is written as an address is checked in full
   here. A name is checked against the list of permitted names; its addresses are not known yet.
2. When a new connection is needed, aiohttp asks `resolve` for the addresses of the name.
3. `resolve` asks the name server, and checks every address of the answer. If one of them may not be called, the call
   fails with `TargetRefused`: a name server that mixes permitted and forbidden addresses is not trusted at all.
4. aiohttp connects to one of the addresses that `resolve` returned. It does not resolve the name again. TLS still
   verifies the certificate against the name.

Example: the name server says 203.0.113.7 for `trainer.example`, and 169.254.169.254 for the next question. The first
call connects to 203.0.113.7. The next connection is refused.

An answer is reused for a few seconds, so that a thousand rollouts that start together ask the name server once.
"""

import asyncio
import socket
import time
from collections.abc import Callable, Coroutine

from aiohttp.abc import AbstractResolver, ResolveResult
from cachetools import TTLCache

from rolloutpool_common.errors import TargetRefused
from rolloutpool_common.security.targets import Targets, as_address

Resolve = Callable[[str], Coroutine[None, None, list[str]]]
"""From a name to its addresses."""

FRESH_SECONDS = 5.0
"""How long an answer of the name server is reused."""
MAX_NAMES = 4096
"""Hosts that are remembered at once."""


async def resolve(name: str) -> list[str]:
    """Asks the system's resolver for the addresses of a name."""
    found = await asyncio.get_running_loop().getaddrinfo(name, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in found))


class Resolver(AbstractResolver):
    """Finds the addresses that may be called; shared by all calls of a process, used on one event loop."""

    def __init__(self, targets: Targets, resolve: Resolve = resolve) -> None:
        """Prepares without asking anything."""
        self._targets = targets
        self._resolve = resolve
        # A worker calls the same few hosts for each turn, so the verdict on host and port is kept.
        self._allowed: set[tuple[str, int]] = set()
        self._lookups: TTLCache[str, asyncio.Task[list[str]]] = TTLCache(MAX_NAMES, FRESH_SECONDS, timer=time.monotonic)

    def check(self, host: str, port: int) -> None:
        """Checks a URL's host and port before a call. Of a name, `resolve` checks the addresses later."""
        if not 0 < port < 65536:
            raise OverflowError(f"port {port}")
        # It depends on the settings alone, so it never becomes stale.
        if (host, port) in self._allowed:
            return
        if fault := self._targets.refuse_host(host, port):
            raise TargetRefused(fault)
        if len(self._allowed) >= MAX_NAMES:
            self._allowed.clear()
        self._allowed.add((host, port))

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Finds all addresses of a name, for aiohttp to connect to one of them."""
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
        """Cancels the lookups that are still running."""
        for lookup in self._lookups.values():
            lookup.cancel()

    async def _addresses(self, name: str) -> list[str]:
        lookup = self._lookups.get(name)
        # A failed lookup is not reused: the name may exist a moment later.
        if lookup is None or (lookup.done() and (lookup.cancelled() or lookup.exception())):
            lookup = asyncio.create_task(self._resolve(name))
            self._lookups[name] = lookup
        # The lookup is shared: a caller that is cancelled must not cancel it for the others.
        return await asyncio.shield(lookup)
