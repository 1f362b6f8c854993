"""`python -m tests.inproc.first_calls`: workers die between the claim and the first byte of the first call, 100 times.

Half of the batches ask a trainer that promises nothing, half one that may be asked twice; each rollout has one turn. A
batch is submitted again and again until so many workers have died. It exits with 1 where one has failed: its
turn was in doubt although nobody was asked.
"""

import asyncio
import os
import random
import sys
from collections import Counter
from typing import TYPE_CHECKING

import orjson
from tests.inproc.__main__ import HASH_SEED, opened_world
from tests.inproc.clock import PoolLoop, seed_chance

if TYPE_CHECKING:
    from tests.inproc.histories import World
    from tests.inproc.pool import Pool

KILLS = 100
RATE = 0.2
"""How often a worker dies that is about to call."""
LIMIT = 3600.0


def main() -> int:
    """Plays; returns the exit code."""
    if os.environ.get("PYTHONHASHSEED") != HASH_SEED:
        command = [sys.executable, "-m", "tests.inproc.first_calls"]
        os.execve(sys.executable, command, os.environ | {"PYTHONHASHSEED": HASH_SEED})
    with opened_world() as world:
        seed_chance(1)
        loop = PoolLoop(world.clock)
        asyncio.set_event_loop(loop)
        loop.set_exception_handler(lambda *_: None)
        return loop.run_until_complete(asyncio.wait_for(_play(world, loop), LIMIT))


async def _play(world: "World", loop: PoolLoop) -> int:
    from tests.inproc.fake_redis import URL, MemoryRedis
    from tests.inproc.pool import Pool
    from tests.inproc.trainer import KEEPS, ONCE, Trainer, question

    MemoryRedis(loop, random.Random(1))
    trainer = Trainer(loop, random.Random(2), world.tokenizer, world.tools)
    pool = Pool(loop, random.Random(3), URL, trainer, world.tokenizers)
    # A worker that dies has no other rollout, whose call would really be in doubt.
    pool.worker_settings = pool.worker_settings.model_copy(update={"worker_slots": 1})
    await pool.start(3)
    pool.failpoints["worker.obs_before_call"] = RATE
    ends: Counter[str] = Counter()
    submits = 0
    while len(pool.kills) < KILLS:
        server = (ONCE, KEEPS)[submits % 2]
        submits += 1
        items = [{"messages": [{"role": "user", "content": question(pool.chance, 1)}]} for _ in range(12)]
        body = {"defaults": {"tokenizer_name": "rolloutpool/tiny", "server_url": server}, "rollouts": items}
        for uid in await pool.submit(body, str(submits)):
            ends[f"{await _end(pool, uid)} at {server}"] += 1
    await pool.close()
    print(f"{len(pool.kills)} kills, {submits} batches, ends: {dict(sorted(ends.items()))}")
    return int(any(not end.startswith("completed") for end in ends))


async def _end(pool: "Pool", uid: str) -> str:
    """Returns how a rollout has ended."""
    while (result := await pool.store.rollouts.result(uid)) is None:  # noqa: ASYNC110  nothing else tells of it
        await asyncio.sleep(0.5)
    failure = orjson.loads(result)["failure"]
    return "completed" if failure is None else str(failure["category"])


if __name__ == "__main__":
    sys.exit(main())
