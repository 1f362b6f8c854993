"""What a worker doubts is kept for all, with the earliest time since which rollouts may have wrong ids."""

from datetime import UTC, datetime

from fakeredis import FakeAsyncRedis
from tests.support.batches import beat

from rolloutpool_common.store import Store, doubts, keys


async def test_a_doubt_keeps_its_finder_and_the_earliest_time(store: Store, other: Store, raw: FakeAsyncRedis) -> None:
    assert await store.doubts.listed() == []
    await store.doubts.add("w1", {"t.1": 60.0})
    (first,) = await other.doubts.listed()
    assert (first.name, first.worker_id) == ("t.1", "w1")
    assert first.found_ms - first.since_ms == 60_000
    # A worker that used the shape for longer, one that used it later, and the first one again.
    for worker, age_s in (("w2", 600.0), ("w3", 1.0), ("w1", 60.0)):
        await other.doubts.add(worker, {"t.1": age_s})
    (then,) = await store.doubts.listed()
    assert (then.found_ms, then.worker_id) == (first.found_ms, "w1")
    assert then.since_ms < first.since_ms - 500_000
    assert (await store.totals.read()).totals == {"doubts": 1}
    assert await raw.ttl(keys.DOUBTS) == -1


async def test_the_answer_to_a_beat_says_how_many_there_are(store: Store) -> None:
    assert (await beat(store, "w1", running=0, tokenizers={})).doubts == 0
    await store.doubts.add("w1", {"t.1": 1.0, "t.2": 1.0})
    assert (await beat(store, "w1", running=0, tokenizers={})).doubts == 2


async def test_no_more_are_kept_than_the_limit(store: Store) -> None:
    await store.doubts.add("w1", {f"t.{n}": 1.0 for n in range(doubts.MOST_KEPT - 1)})
    await store.doubts.add("w1", {"u.1": 1.0, "u.2": 1.0})
    assert len(await store.doubts.listed()) == doubts.MOST_KEPT


async def test_an_operator_reads_for_each_template_which_rollouts_ran_in_doubt(store: Store) -> None:
    assert await store.doubts.warnings() == []
    await store.doubts.add("w1", {"aa.1": 60.0, "aa.2": 120.0, "bb.1": 1.0})
    about = sorted(await store.doubts.warnings())
    assert [warning.partition("; found by")[0] for warning in about] == [
        "delta_doubted: deltas of template aa go by the rule (shapes: 2",
        "delta_doubted: deltas of template bb go by the rule (shapes: 1",
    ]
    first = min(shape.since_ms for shape in await store.doubts.listed())
    assert datetime.fromtimestamp(first / 1000, UTC).isoformat(timespec="seconds") in about[0]
    await store.doubts.add("w1", {f"{n}.1": 1.0 for n in range(2 * doubts.MOST_SAID)})
    assert len(await store.doubts.warnings()) == doubts.MOST_SAID
