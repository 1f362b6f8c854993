"""What one worker process gives all sessions: time limits, places, the fence between attempts, and the last close.

**Places.** An environment may declare how many sessions it takes from one process. Further rollouts wait here, in the
order in which they came, for as long as a call may take at the most. Then they go back to the queue, because each that
waits has a slot of the worker: 256 of one tenant, whose environment hangs, would leave none for others.

**Fence.** A worker that was declared dead by mistake can run an old attempt at a rollout while another attempt runs
elsewhere, or in this very process. Each attempt has a session of its own, and within a process an older attempt is cut
off as soon as a newer one opens: its next call is refused. Servers outside get uid and attempt with each request, and
refuse the lower one themselves.

**Close.** A session is closed in a task of its own, which no cancelled rollout takes along, for `CLOSE_SECONDS` at the
most. When the process stops, it waits for those tasks, and then closes what is still open.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

from rolloutpool_common.process.metrics import SESSIONS
from rolloutpool_worker.environments.base import ENVIRONMENTS, Environment, EnvironmentFull

_log = logging.getLogger(__name__)

CLOSE_SECONDS = 10.0
"""For one close: the rollout's slot is held meanwhile."""


@dataclass(eq=False)
class SessionTicket:
    """One session, open or about to be, as the host knows it."""

    environment: str
    uid: str
    attempt: int
    fenced: bool = False
    """Whether a newer attempt at the rollout has a session in this process."""
    close: Callable[[], Awaitable[None]] | None = None
    """Ends the session; None while there is none."""
    closing: asyncio.Task[None] | None = field(default=None, repr=False)


class EnvironmentHost:
    """The sessions of one worker process."""

    def __init__(self, *, seconds: float, result_bytes: int, tool_servers: Environment | None = None) -> None:
        """Opens nothing."""
        self.seconds = seconds
        self.result_bytes = result_bytes
        self.tool_servers = tool_servers
        """What protocol v1's `tool_server_url` leads to; None where no server is called that a rollout names."""
        self._tickets: set[SessionTicket] = set()
        self._places: dict[str, asyncio.Semaphore] = {}

    def __len__(self) -> int:
        """How many sessions are open, about to be opened, or being closed."""
        return len(self._tickets)

    async def enter(self, name: str, environment: Environment, uid: str, attempt: int) -> SessionTicket:
        """Waits for a place, and cuts off older attempts."""
        if environment.places is not None:
            places = self._places.setdefault(name, asyncio.Semaphore(environment.places))
            try:
                async with asyncio.timeout(self.seconds):
                    await places.acquire()
            except TimeoutError:
                raise EnvironmentFull(
                    f"environment {name}: all {environment.places} places of this worker are taken"
                ) from None
        ticket = SessionTicket(name, uid, attempt)
        for other in self._tickets:
            if other.uid == uid:
                older = min(ticket, other, key=lambda one: one.attempt)
                older.fenced = True
        self._tickets.add(ticket)
        SESSIONS.now += 1
        return ticket

    async def leave(self, ticket: SessionTicket) -> None:
        """Closes a session and gives its place back; the second time, only waits for the first."""
        if ticket.closing is None:
            ticket.closing = asyncio.create_task(self._close(ticket))
        # The close goes on where this caller is cancelled: by a second SIGTERM, say.
        await asyncio.shield(ticket.closing)

    async def _close(self, ticket: SessionTicket) -> None:
        try:
            if ticket.close is not None:
                async with asyncio.timeout(CLOSE_SECONDS):
                    await ticket.close()
        # Of a plug-in or a server. The rollout has its result, and the server's own expiry must do the rest.
        except (Exception, SystemExit, KeyboardInterrupt, asyncio.CancelledError) as error:
            _log.warning(
                "environment %s: the session of rollout %s, attempt %d, could not be closed: %s",
                *(ticket.environment, ticket.uid, ticket.attempt, type(error).__name__),
            )
        finally:
            self._tickets.discard(ticket)
            SESSIONS.now -= 1
            if ticket.environment in self._places:
                self._places[ticket.environment].release()

    async def close(self) -> None:
        """Closes all sessions that are still open."""
        await asyncio.gather(*(self.leave(ticket) for ticket in tuple(self._tickets)))


async def close_environments() -> None:
    """Closes what the environments themselves hold; the process has no sessions any more."""
    for environment in ENVIRONMENTS.values():
        with suppress(Exception):
            async with asyncio.timeout(CLOSE_SECONDS):
                await environment.aclose()
