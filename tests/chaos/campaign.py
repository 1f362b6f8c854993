"""A campaign: work comes in, faults come with it, in step, from one seed; then all heals, and all must have ended.

What the verdict rests on is in the folder: `client.jsonl` (what was promised and read), `trainer-N.jsonl` (what was
asked and sampled), `campaign.jsonl` (what was done to whom).
"""

import asyncio
import random
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.cast import Cast
from tests.chaos.clocks import find_library
from tests.chaos.consumer import Consumer
from tests.chaos.faults import Faults
from tests.chaos.hogs import Hogs
from tests.chaos.hosts import machine_names
from tests.chaos.items import SHARES, draw_items
from tests.chaos.manners import Manner
from tests.chaos.record import Record
from tests.chaos.trainer import TURNS
from tests.machines.network import network
from tests.support.waiting import until, until_true

from rolloutpool_trainer.endpoint.server import serve_callback

BATCH = 20
SLACK = 0.05
"""Share of all kills that may be missing."""
START_SECONDS = 120.0
PUSH_SECONDS = 120.0
LOSS = 1
"""Percent of the packets that come to a machine."""
END_SECONDS = 600.0
"""How long the pool may take, once nothing is wrong any more, to end all that it accepted."""


@dataclass(frozen=True, kw_only=True)
class Campaign:
    """What is to be done."""

    rollouts: int
    kills: int
    """kill -9 from outside; failpoints come on top."""
    seed: int
    load: int = 0
    """Busy loops beside it."""
    long_faults: bool = True
    """Whether there are faults that last for 10 to 72 s."""
    machines: bool = False
    """Whether Redis, APIs and hosts are on machines of their own, between which packets are lost."""
    clocks: bool = False
    """Whether clocks jump, where the library for it is installed. It makes each look at the clock slower."""
    hosts: Sequence[int] = (2, 2, 1)
    """How many workers each host has."""
    shares: Mapping[Manner, float] = field(default_factory=lambda: SHARES)
    """How often a rollout goes to a port of each manner."""
    in_flight: int = 200
    """Rollouts that are open at once."""
    latency: float = 3.2
    """Seconds that a turn takes on average."""
    gap: tuple[float, float] = (2.0, 5.5)
    """Seconds between two faults."""
    kill_share: float = 0.4
    """Of all faults."""

    def failpoints(self) -> dict[str, float]:
        """The chance of each, so that each ends a twelfth as many processes as are killed from outside."""
        batches = self.rollouts / BATCH
        passes = {
            "api.commit_before_answer": batches,
            "worker.reply_before_turn": self.rollouts * TURNS,
            "worker.turn_before_tools": self.rollouts * (TURNS - 1),
            "worker.obs_before_call": self.rollouts * TURNS,
            "worker.kept_before_grade": self.rollouts * 0.4,
            "worker.grades_before_delivery": self.rollouts * 0.2,
            "worker.finish_before_ack": self.rollouts,
            "delivery.pushed_before_mark": self.rollouts / 2,
        }
        return {name: min(self.kills / 12 / count, 0.5) for name, count in passes.items()}


async def run(campaign: Campaign, folder: Path) -> None:
    """Runs it, leaving its logs in the folder."""
    rng = random.Random(campaign.seed)
    record = Record(folder / "campaign.jsonl")
    clocks = campaign.clocks and find_library() is not None
    if campaign.clocks and not clocks:
        record.write("skipped", why="clock jumps: libfaketime is not installed (Debian: apt-get install faketime)")
    with ExitStack() as stack:
        machines = {}
        if campaign.machines:
            machines = stack.enter_context(network(folder, *machine_names(len(campaign.hosts))))
            for machine in machines.values():
                machine.lose(LOSS)
        cast = Cast(
            folder,
            record,
            hosts=campaign.hosts,
            latency=campaign.latency,
            failpoints=campaign.failpoints(),
            clocks=clocks,
            machines=machines,
        )
        hogs = Hogs(campaign.load)
        consumer = Consumer(cast.api_urls, Record(folder / "client.jsonl"), rng, cast.key)
        receiver = stack.enter_context(serve_callback(consumer.receiver, [0], cast.here))
        try:
            await start(cast, consumer)
            await hogs.start()
            record.write("begin", load=campaign.load)
            await _play(campaign, cast, consumer, f"{receiver.url}/results", record, rng)
            record.write("end", open=consumer.open, unpushed=len(consumer.unpushed))
            await cast.note_sessions()
            await cast.note_totals()
        finally:
            await hogs.stop()
            await cast.stop()
            await consumer.close()


async def start(cast: Cast, consumer: Consumer) -> None:
    """Starts pool and trainers; returns when all workers are there and the trainers listen."""
    await cast.start_pool()

    async def complete() -> bool:
        return await consumer.workers() == cast.workers

    # What asks the API asks for ever, and a pool that does not start would never answer.
    async with asyncio.timeout(START_SECONDS):
        await until(complete, START_SECONDS)
        tools = await consumer.tools()
    await cast.start_trainers(tools)


async def _play(
    campaign: Campaign, cast: Cast, consumer: Consumer, push_to: str, record: Record, rng: random.Random
) -> None:
    faults = Faults(cast, record, rng, consumer.accepted, long=campaign.long_faults)
    items = draw_items(cast, campaign.rollouts, campaign.seed, campaign.shares, graded=True, played=True)
    batches = [items[start : start + BATCH] for start in range(0, len(items), BATCH)]
    reading: set[asyncio.Task[None]] = set()
    submitted = 0

    async def hurt() -> None:
        await faults.begin()
        while faults.kills < campaign.kills or submitted < len(items):
            await asyncio.sleep(rng.uniform(*campaign.gap))
            if submitted == len(items) and not consumer.open:
                return
            _raise_if_failed(*reading)
            # A fault among idle processes proves nothing.
            if consumer.open < BATCH:
                continue
            # Kills are neither ahead of the work nor behind it: on a fast machine there would not be enough.
            done, todo = faults.kills / campaign.kills, submitted / len(items)
            behind, ahead = done < todo - SLACK, done > todo or faults.kills == campaign.kills
            kills = behind or (not ahead and rng.random() < campaign.kill_share)
            await (faults.kill() if kills else faults.other())

    hurting = asyncio.create_task(hurt())
    for number, batch in enumerate(batches):
        # Nor behind it, as long as there is enough to hurt.
        while consumer.open > campaign.in_flight or (
            consumer.open > campaign.in_flight / 2 and submitted / len(items) > (faults.kills + 1) / campaign.kills
        ):
            _raise_if_failed(hurting, *reading)
            await asyncio.sleep(0.05)
        again = rng.choice([0, 0, 0, 1, 2])
        task = asyncio.create_task(consumer.submit(f"batch-{number}", batch, push_to if number % 2 else None, again))
        reading.add(task)
        submitted += len(batch)
        consumer.open += len(batch)
    await hurting
    await faults.end()
    record.write("healed")
    _, late = await asyncio.wait(reading, timeout=END_SECONDS)
    for task in late:
        task.cancel()
    for task in reading - late:
        task.result()
    with suppress(AssertionError):
        await until_true(lambda: not consumer.unpushed, PUSH_SECONDS)


def _raise_if_failed(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        if task.done():
            task.result()
