"""Redis fails over by Sentinel while rollouts run: the work goes on with the replica, and nobody is declared dead."""

import asyncio
import random
from pathlib import Path

import pytest
from tests.chaos.cast import Cast
from tests.chaos.consumer import Consumer
from tests.chaos.failover import Failover
from tests.chaos.items import draw_items
from tests.chaos.manners import Manner
from tests.chaos.record import Record, entries
from tests.chaos.table import show
from tests.chaos.verdict import judge
from tests.support.waiting import until

ROLLOUTS = 40


@pytest.mark.timeout(240)
@pytest.mark.slow
async def test_work_goes_on_after_sentinel_has_made_the_replica_the_primary(tmp_path: Path) -> None:
    record = Record(tmp_path / "campaign.jsonl")
    cast = Cast(tmp_path, record, hosts=(2,), latency=0.8, failpoints={})
    consumer = Consumer(cast.api_urls, Record(tmp_path / "client.jsonl"), random.Random(1))
    failover = Failover(cast, record)
    try:
        await cast.start_pool()
        await failover.start()

        async def complete() -> bool:
            return await consumer.workers() == cast.workers

        await until(complete, 120)
        await cast.start_trainers(await consumer.tools())
        record.write("begin")
        items = draw_items(cast, ROLLOUTS, "failover", {Manner.STEADY: 1})
        consumer.open += len(items)
        reading = asyncio.create_task(consumer.submit("batch", items, None, 0))
        await until(cast.busy, 60)
        await failover.fail_over()
        async with asyncio.timeout(120):
            await reading
        record.write("end")
        await cast.note_totals()
    finally:
        await failover.stop()
        await cast.stop()
        await consumer.close()
    verdict = judge(tmp_path)
    table = show(verdict)
    assert verdict.clean, table
    assert verdict.completed == ROLLOUTS, table
    # No process had ended, so no death at all may have been declared.
    assert (verdict.deaths.true, verdict.deaths.unknown, verdict.deaths.unlogged) == (0, 0, 0), table
    # It was in the middle of the work.
    (moved,) = [entry["at"] for entry in entries(tmp_path / "campaign.jsonl") if entry["event"] == "over"]
    results = [entry["at"] for entry in entries(tmp_path / "client.jsonl") if entry["event"] == "result"]
    assert sum(at > moved for at in results) > ROLLOUTS / 4
