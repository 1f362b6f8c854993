"""Who works, and who has ended, by the campaign's own look at processes; the pool's judgement counts for nothing here.

1. Each worker process announces itself in Redis with its pid. The census reads the list several times a second, finds
   the process below one of the campaign's hosts, and notes a `member`.
2. It holds a pidfd of each member: the kernel says when the process ends, whoever its parent is. It notes `gone`.
3. A member that is not listed any more while its process lives is `unlisted`; one that comes back is `listed again`. A
   worker that leaves by itself does not come back, so this is how a false death shows without a line of any log.

`deaths.py` puts these next to what the reconciler said.
"""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

import orjson
import redis.asyncio
import redis.exceptions
from tests.chaos.record import Record

LOOK_SECONDS = 0.2
ANSWER_SECONDS = 2.0
"""How long Redis may take; while it is paused, the census waits for the next look."""


@dataclass
class Member:
    """A worker process that has announced itself."""

    worker: str
    """Its id in the pool."""
    pid: int
    host: str
    """The campaign's name of the host, a link's and a process' name."""
    isolated: bool
    """Whether it runs suspects."""
    since: float
    """Monotonic time at which it was first seen."""
    listed: bool = True
    fd: int | None = None
    """The pidfd of its process, until that ends."""

    def send(self, number: int) -> None:
        """Sends a signal to its process, and never to another one that got its pid."""
        if self.fd is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.fd, number)


class Census:
    """The workers of a campaign, by the ids that they announce."""

    def __init__(self, record: Record, address: str, port: int, hosts: Callable[[], Mapping[int, str]]) -> None:
        """`hosts` returns the pids of all processes of all hosts, each with its host's name."""
        self._record = record
        self._address = address
        self._port = port
        self._hosts = hosts
        self._members: dict[str, Member] = {}
        self._task: asyncio.Task[None] | None = None

    @property
    def members(self) -> list[Member]:
        """The worker processes that live, oldest first."""
        return [member for member in self._members.values() if member.fd is not None]

    def start(self) -> None:
        """Looks from now on."""
        self._task = asyncio.create_task(self._keep())

    async def stop(self) -> None:
        """Looks no more."""
        # Again and again, because the client of Redis may lose a cancellation: before Python 3.12 `asyncio.wait_for`
        # drops one that comes together with the result.
        while self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=LOOK_SECONDS)
        for member in self.members:
            self._close(member)

    async def _keep(self) -> None:
        while True:
            with suppress(redis.exceptions.RedisError, OSError, TimeoutError):
                async with redis.asyncio.Redis(
                    host=self._address,
                    port=self._port,
                    socket_timeout=ANSWER_SECONDS,
                    socket_connect_timeout=ANSWER_SECONDS,
                ) as client:
                    await self._look(client)
            await asyncio.sleep(LOOK_SECONDS)

    async def _look(self, client: redis.asyncio.Redis) -> None:
        found = await client.zrange("rp:workers", 0, -1)
        listed = {raw.decode() for raw in found if isinstance(raw, bytes)}
        for worker in listed - self._members.keys():
            about = await client.hget(f"rp:worker:{worker}", "about")
            if about is not None:
                self._join(worker, orjson.loads(about))
        for member in self.members:
            if member.listed is not (member.worker in listed):
                member.listed = not member.listed
                self._note("listed again" if member.listed else "unlisted", member)

    def _join(self, worker: str, about: dict[str, object]) -> None:
        pid = about["pid"]
        assert isinstance(pid, int)
        host = self._hosts().get(pid)
        if host is None:
            # It has ended since it announced itself.
            return
        isolated = about["role"] == "isolated"
        self._members[worker] = member = Member(worker, pid, host, isolated, time.monotonic())
        self._note("member", member, isolated=isolated)
        try:
            member.fd = os.pidfd_open(pid)
        except ProcessLookupError:
            self._note("gone", member)
            return
        asyncio.get_running_loop().add_reader(member.fd, self._end, member)

    def _end(self, member: Member) -> None:
        self._close(member)
        self._note("gone", member)

    def _close(self, member: Member) -> None:
        assert member.fd is not None
        asyncio.get_running_loop().remove_reader(member.fd)
        os.close(member.fd)
        member.fd = None

    def _note(self, event: str, member: Member, **more: object) -> None:
        self._record.write(event, worker=member.worker, pid=member.pid, host=member.host, **more)
