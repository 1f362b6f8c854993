"""`python -m tests.chaos.soak --hours 1 --load 8 [--come-and-go] [--folder DIR]`: steady work on a hard machine.

CPU hogs run beside it, workers hold Python's lock for 10 s or are stopped for 20 s, and Redis is paused or stopped for
30 s. No process is ended, unless workers are to come and go: then hosts are added and taken away, and workers are
drained and killed; what lives through it all is judged as before. Then the work ends, all batches are deleted when
their short retention is over, and Redis must hold what it held before. Exit code 1 if a living worker was declared
dead, a promise was broken, or what the processes use grew.
"""

import argparse
import asyncio
import random
import sys
import tempfile
from collections.abc import Coroutine
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path

import orjson
from tests.chaos.campaign import start
from tests.chaos.cast import Cast
from tests.chaos.consumer import Consumer
from tests.chaos.faults import Faults
from tests.chaos.hogs import Hogs
from tests.chaos.items import STEADY_SHARES, draw_items
from tests.chaos.long_faults import LongFaults
from tests.chaos.priority import prefer
from tests.chaos.record import Record, entries
from tests.chaos.samples import Sampler
from tests.chaos.steadiness import judge_steadiness, show_steadiness
from tests.chaos.table import show
from tests.chaos.verdict import judge
from tests.support.waiting import until

from rolloutpool_trainer.endpoint.server import serve_callback

BATCH = 20
IN_FLIGHT = 40
LATENCY = 3.2
RETENTION_SECONDS = 60.0
SAMPLE_SECONDS = 10.0
GAP = (5.0, 15.0)
"""Between two faults."""
END_SECONDS = 300.0
"""How long what is in flight at the end may take."""
EMPTY_SECONDS = RETENTION_SECONDS + 60.0
STANDING = (
    *("rp:finished", "rp:totals", "rp:epoch", "rp:leader", "rp:schema", "rp:open", "rp:workers", "rp:worker:"),
    # What was learned of an endpoint, a process or a run is for the next rollouts too, and expires or has a bound
    # (`store/trainers.py`, `measures.py`, `usage.py`, `condemn.lua`).
    *("rp:trainer:", "rp:endpoints", "rp:measures:", "rp:process:", "rp:condemned"),
)
"""What Redis holds once, for each worker or for each endpoint; the rest of what it holds belongs to work."""


async def soak(folder: Path, *, seconds: float, load: int, seed: int, come_and_go: bool = False) -> None:
    """Runs it, leaving its notes in the folder."""
    rng = random.Random(seed)
    record = Record(folder / "campaign.jsonl")
    env = {"ROLLOUTPOOL_RETENTION_HOURS": str(RETENTION_SECONDS / 3600)}
    cast = Cast(folder, record, hosts=(2, 1), latency=LATENCY, failpoints={}, env=env)
    consumer = Consumer(cast.api_urls, Record(folder / "client.jsonl"), rng)
    hogs, sampler = Hogs(load), Sampler(cast, record, min(SAMPLE_SECONDS, seconds / 30))
    with ExitStack() as stack:
        receiver = stack.enter_context(serve_callback(consumer.receiver, [0]))
        try:
            await start(cast, consumer)
            before = await _keys(cast)
            await hogs.start()
            sampler.start()
            record.write("begin", load=load, come_and_go=come_and_go)
            hurting = _hurt(cast, record, rng, seconds, come_and_go=come_and_go)
            await _work(cast, consumer, rng, f"{receiver.url}/results", seconds, hurting)
            await sampler.stop()
            record.write("end", open=consumer.open, unpushed=len(consumer.unpushed))
            await cast.note_totals()
            await hogs.stop()

            async def empty() -> bool:
                return not await _keys(cast) - before

            with suppress(AssertionError):
                await until(empty, EMPTY_SECONDS)
            record.write("left", keys=sorted(await _keys(cast) - before))
        finally:
            await hogs.stop()
            await sampler.stop()
            await cast.stop()
            await consumer.close()


async def _hurt(cast: Cast, record: Record, rng: random.Random, seconds: float, *, come_and_go: bool) -> None:
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    lasting, faults = LongFaults(cast, record, rng), Faults(cast, record, rng, [])
    while loop.time() < end:
        await asyncio.sleep(rng.uniform(*GAP))
        if come_and_go:
            await faults.come_and_go()
        lasting.begin(steady=True)
        await lasting.end()
    await faults.end()


async def _work(
    cast: Cast,
    consumer: Consumer,
    rng: random.Random,
    push_to: str,
    seconds: float,
    hurt: Coroutine[None, None, None],
) -> None:
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    reading: set[asyncio.Task[None]] = set()
    hurting = asyncio.create_task(hurt)
    number = 0
    while loop.time() < end:
        for task in [task for task in reading if task.done()]:
            reading.discard(task)
            task.result()
        if consumer.open <= IN_FLIGHT:
            items = draw_items(cast, BATCH, f"soak-{number}", STEADY_SHARES)
            submit = consumer.submit(f"batch-{number}", items, push_to if number % 2 else None, 0)
            reading.add(asyncio.create_task(submit))
            consumer.open += BATCH
            number += 1
        await asyncio.sleep(0.1)
    await hurting
    _, late = await asyncio.wait(reading, timeout=END_SECONDS) if reading else (set(), set())
    for task in late:
        task.cancel()


async def _keys(cast: Cast) -> set[str]:
    """What Redis holds because of work."""
    async with cast.client() as client:
        found = {raw.decode() async for raw in client.scan_iter(count=1000)}
        # What a run's rollouts need is kept for its next ones; nothing may stay reserved.
        learnt = {
            key for key in found if key.startswith("rp:reserve:") and not int(await client.hget(key, "open") or 0)
        }
    return {key for key in found - learnt if not key.startswith(STANDING)}


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.soak")
    parser.add_argument("--hours", type=float, default=1)
    parser.add_argument("--come-and-go", action="store_true", help="add, take away, drain and kill workers")
    parser.add_argument("--load", type=int, default=8, help="busy loops beside it")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="where logs and soak.json stay")
    arguments = parser.parse_args()
    prefer()
    with tempfile.TemporaryDirectory(prefix="rolloutpool-soak-") as temporary:
        folder = arguments.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        running = soak(
            folder,
            seconds=arguments.hours * 3600,
            load=arguments.load,
            seed=arguments.seed,
            come_and_go=arguments.come_and_go,
        )
        asyncio.run(running)
        verdict, steadiness = judge(folder), judge_steadiness(entries(folder / "campaign.jsonl"))
        document = {"verdict": verdict.document(), "steadiness": asdict(steadiness)}
        (folder / "soak.json").write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2))
    print(show(verdict))
    print(show_steadiness(steadiness))
    return 0 if verdict.clean and steadiness.steady else 1


if __name__ == "__main__":
    sys.exit(main())
