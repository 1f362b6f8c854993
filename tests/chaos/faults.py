"""What goes wrong in a campaign, drawn from a seed: whom it hits, how, and for how long.

Each fault is written down before it happens, so that a fault without consequences shows as one. Those that last for
tens of seconds are in `long_faults.py`.
"""

import asyncio
import os
import random
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import redis.exceptions
from kombu.exceptions import KombuError
from tests.chaos.cast import Cast
from tests.chaos.census import Member
from tests.chaos.leader import leader
from tests.chaos.link import Link
from tests.chaos.long_faults import LongFaults
from tests.chaos.manners import MUST_COMPLETE, Manner
from tests.chaos.process import STEADY, Process
from tests.chaos.record import Record
from tests.support.waiting import until

from rolloutpool_common.protocol.batch import Priority
from rolloutpool_common.queue.celery_app import TASK_NAME, make_celery, queue_name
from rolloutpool_common.queue.publisher import HEADER_PUBLISHED

SILENCE = (7.0, 11.0)
"""Seconds for which a worker falls silent and lives."""
LONG_SHARE = 0.2
"""Of all faults but kills, where none of the long ones lasts."""
BUSY_SECONDS = 60.0
LOST_SECONDS = (5.0, 15.0)
"""Until a lost machine is there again."""


class Faults:
    """The faults of one campaign."""

    def __init__(
        self, cast: Cast, record: Record, rng: random.Random, uids: Sequence[str], *, long: bool = False
    ) -> None:
        """`uids` grows: rollouts whose tickets may come a second time. `long`: with those that last."""
        self.kills = 0
        self._cast = cast
        self._record = record
        self._rng = rng
        self._lasting: set[asyncio.Task[None]] = set()
        self._scaling: asyncio.Task[None] | None = None
        self._uids = uids
        self._long = LongFaults(cast, record, rng) if long else None

    async def begin(self) -> None:
        """Kills a worker as soon as one has a rollout's finished turns in its hands, so that no campaign is without."""
        victim = await until(self._cast.busy, BUSY_SECONDS)
        self._kill_worker(victim)

    async def kill(self) -> None:
        """Ends somebody by kill -9."""
        kinds = {
            self._kill_some_worker: 40,
            self._kill_host: 10,
            self._kill_api: 15,
            self._kill_trainer: 20,
            self._kill_redis: 15,
            self._kill_environments: 10,
        }
        await self._rng.choices(list(kinds), list(kinds.values()))[0]()

    async def other(self) -> None:
        """Anything but a kill."""
        if self._long is not None and self._long.idle and self._rng.random() < LONG_SHARE:
            self._long.begin()
            return
        faults: dict[Callable[[], Awaitable[None]], int] = {
            self._drain: 20,
            self._stop: 3,
            self._client_kill: 4,
            self._cut: 6,
            self._hold: 4,
            self._delay: 4,
            self._half_close: 4,
            self._refuse: 4,
            self._duplicate_tickets: 6,
            self._mangle: 6,
            self._lose_a_rollout: 3,
            self._scale_out: 5,
            self._scale_in: 4,
        }
        await self._rng.choices(list(faults), list(faults.values()))[0]()

    async def come_and_go(self) -> None:
        """What an autoscaler and spot machines do to workers: more, fewer, drained, or gone."""
        kinds = {self._scale_out: 4, self._scale_in: 3, self._drain: 3, self._kill_some_worker: 3}
        await self._rng.choices(list(kinds), list(kinds.values()))[0]()

    async def end(self) -> None:
        """Waits for what lasts, and heals all."""
        await asyncio.gather(*self._lasting)
        if self._scaling is not None:
            await self._scaling
        if self._long is not None:
            await self._long.end()
        for link in self._cast.links:
            link.heal()

    async def _kill_some_worker(self) -> None:
        if (victim := self._some_member()) is not None:
            self._kill_worker(victim)

    async def _kill_host(self) -> None:
        """Kills a parent, and half of the times all its workers in the same instant."""
        hosts = [host for host in self._cast.hosts if host.root.ready]
        if hosts:
            host = self._rng.choice(hosts)
            whole = self._rng.random() < 0.5
            pids = host.pids()
            self._note_kill("parent and children" if whole else "parent", host.name, pids)
            if whole and host.name in self._cast.machines:
                # A machine that is lost tells nobody that its connections have ended.
                self._cast.cut_off(host)
                self._for(self._rng.uniform(*LOST_SECONDS), lambda: self._cast.join(host))
            for pid in pids if whole else pids[:1]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    async def _kill_api(self) -> None:
        """Kills an API process, and half of the times the one that leads."""
        victim = self._rng.choice(self._cast.apis)
        leads = self._rng.random() < 0.5
        if leads:
            found = await leader(self._cast)
            leads, victim = found is not None, found or victim
        self._kill(victim, "leading api" if leads else "api")

    async def _kill_trainer(self) -> None:
        self._kill(self._rng.choice(self._cast.trainers), "trainer")

    async def _kill_environments(self) -> None:
        self._kill(self._cast.environments, "environments")

    async def _kill_redis(self) -> None:
        self._kill(self._cast.redis, "redis")

    def _kill(self, victim: Process, what: str) -> None:
        # Who starts just now is spared: nothing is in flight there.
        if victim.ready:
            self._note_kill(what, victim.name, [])
            victim.send(signal.SIGKILL)

    def _kill_worker(self, victim: Member) -> None:
        self._note_kill("worker", victim.host, [victim.pid])
        victim.send(signal.SIGKILL)

    def _note_kill(self, what: str, target: str, pids: list[int]) -> None:
        self.kills += 1
        self._note("kill", target, what=what, pids=pids)

    def _some_member(self) -> Member | None:
        """A worker that has had time to get something to do; an isolated one too."""
        now = time.monotonic()
        ready = [member for member in self._cast.census.members if now - member.since > STEADY]
        return self._rng.choice(ready) if ready else None

    async def _drain(self) -> None:
        if (victim := self._some_member()) is not None:
            self._note("drain", victim.host, pids=[victim.pid])
            victim.send(signal.SIGTERM)

    async def _stop(self) -> None:
        if (victim := self._some_member()) is not None:
            self._note("stop", victim.host, pids=[victim.pid])
            victim.send(signal.SIGSTOP)
            self._for(self._rng.uniform(*SILENCE), lambda: self._go_on(victim))

    def _go_on(self, victim: Member) -> None:
        victim.send(signal.SIGCONT)
        self._record.write("over", kind="stop", target=victim.host)

    async def _client_kill(self) -> None:
        self._note("client kill", "redis")
        with suppress(redis.exceptions.RedisError, OSError):
            async with self._cast.client() as client:
                await client.client_kill_filter(_type="normal", skipme=True)

    async def _cut(self) -> None:
        link = self._some_link()
        self._note("cut", link.name)
        link.cut()

    async def _half_close(self) -> None:
        link = self._some_link()
        self._note("half close", link.name)
        link.half_close()

    async def _hold(self) -> None:
        link = self._some_link()
        self._note("hold", link.name)
        link.hold()
        cut = self._rng.random() < 0.5

        def let_go() -> None:
            if cut:
                link.cut()
            link.let_go()
            self._record.write("over", kind="hold", target=link.name)

        self._for(self._rng.uniform(*SILENCE), let_go)

    async def _delay(self) -> None:
        link = self._some_link()
        self._note("delay", link.name)
        link.delay = self._rng.uniform(0.05, 0.3)
        self._for(self._rng.uniform(2, 8), lambda: setattr(link, "delay", 0.0))

    async def _refuse(self) -> None:
        link = self._some_link()
        self._note("refuse", link.name)
        link.refuses = True
        link.cut()

        def accept() -> None:
            link.refuses = False
            self._record.write("over", kind="refuse", target=link.name)

        self._for(self._rng.uniform(1, 8), accept)

    async def _mangle(self) -> None:
        """A proxy that repeats each answer a moment later: what comes is then taken for the next request's reply."""
        if self._cast.mixed:
            return
        ports = self._rng.choice(self._cast.trainer_links)
        # Of an answer that trickles, each piece would be repeated inside the answer. No proxy loses count like that.
        whole = [link for manner, link in ports.items() if manner in MUST_COMPLETE and manner is not Manner.TRICKLE]
        link = self._rng.choice(whole)
        self._note("mangle", link.name)
        link.repeats = self._rng.choice([0.0, 0.03, 0.3])
        self._for(self._rng.uniform(5, 15), lambda: setattr(link, "repeats", None))

    async def _lose_a_rollout(self) -> None:
        """Takes a rollout that waits out of its only place, as a fault that nobody knows would. The audit finds it."""
        with suppress(redis.exceptions.RedisError, OSError):
            async with self._cast.client() as client:
                waiting = [raw.decode() async for raw, _ in client.zscan_iter("rp:delayed")]
                uid = self._rng.choice(waiting) if waiting else ""
                if await client.zrem("rp:delayed", uid):
                    self._note("lose a rollout", uid)

    async def _scale_out(self) -> None:
        if (name := self._cast.scale_out()) is not None:
            self._note("scale out", name)

    async def _scale_in(self) -> None:
        """Not awaited: a drain may take longer than the next faults wait."""

        async def scale_in() -> None:
            if (name := await self._cast.scale_in()) is not None:
                self._record.write("over", kind="scale in", target=name)

        if self._scaling is None or self._scaling.done():
            self._note("scale in", "elastic")
            self._scaling = asyncio.create_task(scale_in())

    async def _duplicate_tickets(self) -> None:
        uids = self._rng.sample(self._uids, min(20, len(self._uids)))
        self._note("duplicate tickets", "redis", tickets=len(uids))
        # Redis may be away just now.
        with suppress(OSError, redis.exceptions.RedisError, KombuError):
            await asyncio.to_thread(self._publish, uids)

    def _publish(self, uids: list[str]) -> None:
        celery = make_celery(self._cast.redis_url)
        try:
            for uid in uids:
                batch, _, index = uid.rpartition("-")
                celery.send_task(
                    TASK_NAME,
                    args=([[batch, int(index)]],),
                    queue=queue_name(Priority.DEFAULT),
                    ignore_result=True,
                    headers={HEADER_PUBLISHED: time.time() * 1000},
                    retry=False,
                )
        finally:
            celery.close()

    def _some_link(self) -> Link:
        cast, rng = self._cast, self._rng
        to_trainers = [link for ports in cast.trainer_links for link in ports.values()]
        return rng.choice(rng.choice([cast.store_links, cast.worker_links, to_trainers]))

    def _for(self, seconds: float, undo: Callable[[], None]) -> None:
        async def later() -> None:
            await asyncio.sleep(seconds)
            undo()

        task = asyncio.create_task(later())
        self._lasting.add(task)
        task.add_done_callback(self._lasting.discard)

    def _note(self, fault: str, target: str, **more: object) -> None:
        self._record.write("fault", kind=fault, target=target, **more)
