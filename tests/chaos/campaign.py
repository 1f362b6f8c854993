"""A campaign: work comes in, faults come with it, in step, from one seed; then all heals, and all must have ended.

What the verdict rests on is in the folder: `client.jsonl` (what was promised and read), `trainer-N.jsonl` (what was
asked and sampled), `campaign.jsonl` (what was done to whom).
"""

import asyncio
import random
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.cast import Cast
from tests.chaos.consumer import Consumer, Item
from tests.chaos.faults import Faults
from tests.chaos.manners import Manner
from tests.chaos.record import Record
from tests.chaos.trainer import TURNS
from tests.support.waiting import until

from rolloutpool_trainer.endpoint.server import serve_callback
from rolloutpool_trainer.testing import calculator_prompts

__all__ = ["Campaign", "run"]

BATCH = 20
SHARES = {
    Manner.STEADY: 70,
    Manner.SLOW: 5,
    Manner.BUSY: 6,
    Manner.FLAKY: 6,
    Manner.RERENDER: 6,
    Manner.FORGETFUL: 3,
    Manner.SHORT: 1,
    Manner.ALIEN: 1,
    Manner.DEAF: 2,
}
SLACK = 0.05
"""Share of all kills that may be missing."""
START_SECONDS = 120.0
PUSH_SECONDS = 120.0
END_SECONDS = 600.0
"""How long the pool may take, once nothing is wrong any more, to end all that it accepted."""


@dataclass(frozen=True, kw_only=True)
class Campaign:
    """What is to be done."""

    rollouts: int
    kills: int
    """kill -9 from outside; failpoints come on top."""
    seed: int
    workers: int = 3
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
            "worker.finish_before_ack": self.rollouts,
            "delivery.pushed_before_mark": self.rollouts / 2,
        }
        return {name: min(self.kills / 12 / count, 0.5) for name, count in passes.items()}


async def run(campaign: Campaign, folder: Path) -> None:
    """Runs it, leaving its logs in the folder."""
    rng = random.Random(campaign.seed)
    record = Record(folder / "campaign.jsonl")
    cast = Cast(folder, record, workers=campaign.workers, latency=campaign.latency, failpoints=campaign.failpoints())
    consumer = Consumer(cast.api_urls, Record(folder / "client.jsonl"), rng)
    with ExitStack() as stack:
        receiver = stack.enter_context(serve_callback(consumer.receiver, [0]))
        try:
            await cast.start_pool()

            async def complete() -> bool:
                return await consumer.workers() == campaign.workers

            # What asks the API asks for ever, and a pool that does not start would never answer.
            async with asyncio.timeout(START_SECONDS):
                await until(complete, START_SECONDS)
                tools = await consumer.tools()
            await cast.start_trainers(tools)
            record.write("begin")
            await _play(campaign, cast, consumer, f"{receiver.url}/results", record, rng)
            record.write("end", open=consumer.open, unpushed=len(consumer.unpushed))
        finally:
            await cast.stop()
            await consumer.close()


async def _play(
    campaign: Campaign, cast: Cast, consumer: Consumer, push_to: str, record: Record, rng: random.Random
) -> None:
    faults = Faults(cast, record, rng, consumer.accepted)
    items = _items(campaign, cast)
    batches = [items[start : start + BATCH] for start in range(0, len(items), BATCH)]
    reading: set[asyncio.Task[None]] = set()
    submitted = 0

    async def hurt() -> None:
        await faults.begin()
        while faults.kills < campaign.kills:
            await asyncio.sleep(rng.uniform(*campaign.gap))
            if submitted == len(items) and not consumer.open:
                return
            # Not ahead of the work: a kill of idle processes proves nothing.
            _raise_if_failed(*reading)
            done, todo = faults.kills / campaign.kills, submitted / len(items)
            if done > todo or consumer.open < BATCH:
                continue
            # Nor behind it: on a fast machine there would not be enough.
            behind = done < todo - SLACK
            await (faults.kill() if behind or rng.random() < campaign.kill_share else faults.other())

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

    async def pushed() -> bool:
        return not consumer.unpushed

    with suppress(AssertionError):
        await until(pushed, PUSH_SECONDS)


def _items(campaign: Campaign, cast: Cast) -> list[Item]:
    rng = random.Random(f"{campaign.seed}/items")
    manners = rng.choices(list(SHARES), list(SHARES.values()), k=campaign.rollouts)
    # A deaf port holds its rollouts for a minute; at the end of a campaign everybody would wait for it.
    early = campaign.rollouts // 2
    questions = calculator_prompts(campaign.rollouts, campaign.seed)
    items: list[Item] = []
    for number, (drawn, question) in enumerate(zip(manners, questions, strict=True)):
        manner = Manner.STEADY if drawn is Manner.DEAF and number > early else drawn
        fields = {
            "rollout_id": f"chaos-{campaign.seed}-{number}",
            "messages": [{"role": "user", "content": question}],
            "server_url": cast.url(manner, rng.randrange(2)),
        }
        items.append((manner, fields))
    return items


def _raise_if_failed(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        if task.done():
            task.result()
