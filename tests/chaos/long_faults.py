"""Faults that last: nobody may take what they do to a living worker for its death.

At most one of them lasts at a time, or nothing would be left to work meanwhile. Each is noted with `fault` as it begins
and with `over` as it ends, so that the verdict knows who was stopped or cut off, and when.
"""

import asyncio
import random
import resource
import signal
from collections.abc import Callable, Coroutine
from contextlib import suppress

import redis.exceptions
from tests.chaos import gil
from tests.chaos.cast import Cast
from tests.chaos.census import Member
from tests.chaos.record import Record

PAUSE_SECONDS = 30.0
STOP_SECONDS = 20.0
LIMIT_SECONDS = 60.0
"""A worker that has not been heard of for so long may be taken over though it lives."""
BEYOND_LIMIT = (LIMIT_SECONDS + 5, LIMIT_SECONDS + 12)
JUMP_SECONDS = 3600
JUMP_LASTS = (5.0, 15.0)
DISK_FULL = (4.0, 10.0)
DISK_LOOK_SECONDS = 0.02


class LongFaults:
    """The long faults of one campaign."""

    def __init__(self, cast: Cast, record: Record, rng: random.Random) -> None:
        """Nothing happens yet."""
        self._cast = cast
        self._record = record
        self._rng = rng
        self._running: asyncio.Task[None] | None = None

    @property
    def idle(self) -> bool:
        """Whether none lasts."""
        return self._running is None or self._running.done()

    def begin(self, *, steady: bool = False) -> None:
        """Begins one and returns; `steady`: only such as a soak has, which end no process and jump no clock."""
        faults: dict[Callable[[], Coroutine[None, None, None]], int] = {
            self._hold_gil: 4,
            self._stop_worker: 4,
            self._pause_redis: 1,
            self._stop_redis: 1,
        }
        if not steady:
            faults |= {self._zombie: 2, self._cut_off_host: 2, self._fill_disk: 2}
            if self._cast.clocks:
                faults |= {self._jump_redis: 1, self._jump_hosts: 2}
            if self._cast.machines:
                faults |= {self._cut_off_redis: 2, self._cut_off_api: 1}
        fault = self._rng.choices(list(faults), list(faults.values()))[0]
        self._running = asyncio.create_task(fault())

    async def end(self) -> None:
        """Waits for the one that lasts."""
        if self._running is not None:
            await self._running

    async def _hold_gil(self) -> None:
        if (member := self._some_member()) is not None:
            self._begin("hold the GIL", member.host, pids=[member.pid])
            member.send(gil.SIGNAL)
            await asyncio.sleep(gil.SECONDS)
            self._over("hold the GIL", member.host)

    async def _stop_worker(self) -> None:
        await self._stop("stop for 20 s", STOP_SECONDS)

    async def _zombie(self) -> None:
        await self._stop("stop beyond the limit", self._rng.uniform(*BEYOND_LIMIT))

    async def _stop(self, kind: str, seconds: float) -> None:
        if (member := self._some_member()) is not None:
            self._begin(kind, member.host, pids=[member.pid])
            member.send(signal.SIGSTOP)
            await asyncio.sleep(seconds)
            member.send(signal.SIGCONT)
            self._over(kind, member.host)

    async def _pause_redis(self) -> None:
        self._begin("pause redis", "redis")
        with suppress(redis.exceptions.RedisError, OSError):
            async with self._cast.client() as client:
                await client.client_pause(int(PAUSE_SECONDS * 1000), all=True)
        await asyncio.sleep(PAUSE_SECONDS)
        self._over("pause redis", "redis")

    async def _stop_redis(self) -> None:
        pid = self._cast.redis.pid
        self._begin("stop redis", "redis")
        self._cast.redis.send(signal.SIGSTOP)
        await asyncio.sleep(PAUSE_SECONDS)
        if self._cast.redis.pid == pid:
            self._cast.redis.send(signal.SIGCONT)
        self._over("stop redis", "redis")

    async def _cut_off_host(self) -> None:
        host = self._rng.choice(self._cast.hosts)
        self._begin("cut off a host", host.name, pids=host.pids())
        self._cast.cut_off(host)
        await asyncio.sleep(self._rng.uniform(*BEYOND_LIMIT))
        self._cast.join(host)
        self._over("cut off a host", host.name)

    async def _cut_off_redis(self) -> None:
        await self._cut_off_machine("redis", "redis")

    async def _cut_off_api(self) -> None:
        await self._cut_off_machine("an api", self._rng.choice(self._cast.apis).name)

    async def _cut_off_machine(self, what: str, name: str) -> None:
        machine = self._cast.machines[name]
        self._begin(f"cut off {what}", name)
        machine.cut()
        await asyncio.sleep(PAUSE_SECONDS)
        machine.join()
        self._over(f"cut off {what}", name)

    async def _fill_disk(self) -> None:
        """No file of Redis may grow: with `appendfsync always` it then ends, and again as often as it is started."""
        self._begin("full disk", "redis")
        until = asyncio.get_running_loop().time() + self._rng.uniform(*DISK_FULL)
        while asyncio.get_running_loop().time() < until:
            self._limit_files(0)
            await asyncio.sleep(DISK_LOOK_SECONDS)
        self._limit_files(resource.RLIM_INFINITY)
        self._over("full disk", "redis")

    async def _jump_redis(self) -> None:
        await self._jump("clock of redis", "redis")

    async def _jump_hosts(self) -> None:
        await self._jump("clock of the hosts", "hosts")

    async def _jump(self, kind: str, whose: str) -> None:
        self._begin(kind, whose)
        clock = self._cast.clocks[whose]
        clock.jump(self._rng.choice([-JUMP_SECONDS, JUMP_SECONDS]))
        await asyncio.sleep(self._rng.uniform(*JUMP_LASTS))
        clock.jump(0)
        self._over(kind, whose)

    def _limit_files(self, size: int) -> None:
        pid = self._cast.redis.pid
        if pid is not None:
            with suppress(ProcessLookupError, PermissionError):
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    def _some_member(self) -> Member | None:
        """A worker that normal work reaches; None where there is none just now."""
        members = [member for member in self._cast.census.members if not member.isolated]
        return self._rng.choice(members) if members else None

    def _begin(self, kind: str, target: str, **more: object) -> None:
        self._record.write("fault", kind=kind, target=target, **more)

    def _over(self, kind: str, target: str) -> None:
        self._record.write("over", kind=kind, target=target)
