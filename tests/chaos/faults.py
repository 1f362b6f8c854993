"""What goes wrong in a campaign, drawn from a seed: whom it hits, how, and for how long.

Each fault is written down before it happens, so that a fault without consequences shows as one.
"""

import asyncio
import random
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import redis.exceptions
from tests.chaos.cast import Cast
from tests.chaos.link import Link
from tests.chaos.process import Process
from tests.chaos.record import Record
from tests.support.waiting import until

from rolloutpool_common.protocol.batch import Priority
from rolloutpool_common.queue.celery_app import TASK_NAME, make_celery, queue_name
from rolloutpool_common.queue.publisher import HEADER_PUBLISHED
from rolloutpool_common.store.workers import DEAD_AFTER_SECONDS

__all__ = ["Faults"]

FALSE_DEATH = (DEAD_AFTER_SECONDS + 2, DEAD_AFTER_SECONDS + 6)
"""Seconds for which a worker falls silent, so that it is declared dead and lives."""
BUSY_SECONDS = 60.0


class Faults:
    """The faults of one campaign."""

    def __init__(self, cast: Cast, record: Record, rng: random.Random, uids: Sequence[str]) -> None:
        """`uids` grows: rollouts whose tickets may come a second time."""
        self.kills = 0
        self._cast = cast
        self._record = record
        self._rng = rng
        self._lasting: set[asyncio.Task[None]] = set()
        self._uids = uids

    async def begin(self) -> None:
        """Kills a worker as soon as one has a rollout's finished turns in its hands, so that no campaign is without."""
        victim = await until(self._cast.busy, BUSY_SECONDS)
        self._kill(victim)

    async def kill(self) -> None:
        """Ends somebody by kill -9."""
        cast, rng = self._cast, self._rng
        victims = rng.choices([cast.workers, cast.apis, cast.trainers, [cast.redis]], [50, 15, 20, 15])[0]
        victim = rng.choice(victims)
        # Who starts just now is spared: nothing is in flight there.
        if victim.ready:
            self._kill(victim)

    async def other(self) -> None:
        """Anything but a kill."""
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
        }
        await self._rng.choices(list(faults), list(faults.values()))[0]()

    async def end(self) -> None:
        """Waits for what lasts, and heals all."""
        await asyncio.gather(*self._lasting)
        for link in self._cast.links:
            link.heal()

    def _kill(self, victim: Process) -> None:
        self.kills += 1
        self._note("kill", victim.name)
        victim.send(signal.SIGKILL)

    async def _drain(self) -> None:
        victim = self._rng.choice(self._cast.workers)
        if victim.ready:
            self._note("drain", victim.name)
            victim.send(signal.SIGTERM)

    async def _stop(self) -> None:
        victim = self._rng.choice(self._cast.workers)
        pid = victim.pid
        if not victim.ready:
            return
        self._note("stop", victim.name)
        victim.send(signal.SIGSTOP)

        def go_on() -> None:
            if victim.pid == pid:
                victim.send(signal.SIGCONT)

        self._for(self._rng.uniform(*FALSE_DEATH), go_on)

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

        self._for(self._rng.uniform(*FALSE_DEATH), let_go)

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
        self._for(self._rng.uniform(1, 8), lambda: setattr(link, "refuses", False))

    async def _duplicate_tickets(self) -> None:
        uids = self._rng.sample(self._uids, min(20, len(self._uids)))
        self._note("duplicate tickets", "redis", tickets=len(uids))
        with suppress(OSError, redis.exceptions.RedisError):
            await asyncio.to_thread(self._publish, uids)

    def _publish(self, uids: list[str]) -> None:
        celery = make_celery(f"redis://127.0.0.1:{self._cast.redis_port}/0")
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
