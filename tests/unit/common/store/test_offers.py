"""What the live workers offer is noted, also of those of other builds, and names the queue for a request."""

from typing import Any

import orjson
import pytest
from fakeredis import FakeAsyncRedis
from tests.support.batches import announce, beat, new_batch, submit

from rolloutpool_common.protocol.batch import Priority
from rolloutpool_common.protocol.offers import RELEASE, digest_of, spell
from rolloutpool_common.protocol.workers import WorkerRole
from rolloutpool_common.store import Store, keys

MAZE = spell(["environment:maze", RELEASE])
MAZE_OFFER = digest_of(MAZE)


async def announce_as_before(raw: FakeAsyncRedis, worker: str, about: bytes) -> None:
    """As a release did that said nothing of offers."""
    await raw.hset(keys.worker(worker), mapping={"about": about, "running": 0})
    await raw.zadd(keys.WORKERS, {worker: 2_000_000_000_000})


def earlier(**changes: object) -> bytes:
    about = {"host": "h", "pid": 1, "slots": 1, "tools": [], "agents": ["tool_calls"], "termination_strategies": []}
    return orjson.dumps({**about, **changes})


async def noted(raw: FakeAsyncRedis) -> dict[str, str]:
    found: dict[Any, Any] = await raw.hgetall(keys.OFFERS)
    return {digest.decode(): text.decode() for digest, text in found.items() if digest != b"read"}


async def test_workers_with_the_same_offer_are_counted_together(store: Store, raw: FakeAsyncRedis) -> None:
    for worker in ("a", "b"):
        await announce(store, worker, environments=["maze"])
    await announce(store, "c")
    await store.offers.look()
    assert sorted((await noted(raw)).values()) == sorted([f"2 1 {MAZE}", f"1 1 {spell([RELEASE])}"])


async def test_those_that_take_no_work_do_not_count(store: Store, raw: FakeAsyncRedis) -> None:
    await announce(store, "drains", environments=["maze"])
    await beat(store, "drains", running=0, tokenizers={}, draining=True)
    await announce(store, "isolated", role=WorkerRole.ISOLATED, environments=["maze"])
    await announce(store, "dead", environments=["maze"])
    assert await store.workers.condemn("dead")
    await store.offers.look()
    assert await noted(raw) == {}


async def test_one_that_is_late_keeps_its_offer_and_has_no_share_of_the_window(
    store: Store, raw: FakeAsyncRedis
) -> None:
    await announce(store, "late", environments=["maze"])
    await raw.zadd(keys.WORKERS, {"late": 1})
    await store.offers.look()
    assert await noted(raw) == {MAZE_OFFER: f"0 1 {MAZE}"}


async def test_the_announcement_of_an_earlier_release_is_read_for_it(store: Store, raw: FakeAsyncRedis) -> None:
    await announce_as_before(raw, "old", earlier(environments=["maze"]))
    await announce_as_before(raw, "strange", b"{")
    await store.offers.look()
    assert sorted((await noted(raw)).values()) == sorted(["1 0 " + spell(["environment:maze"]), "1 0 " + spell([])])
    # It is read once.
    assert await raw.hget("rp:worker:old", "read_offer") == spell(["environment:maze"]).encode()


async def test_an_earlier_release_gets_what_every_worker_has_of_what_was_there_and_nothing_else(
    store: Store, raw: FakeAsyncRedis
) -> None:
    before = await submit(store, [{"environment": {"name": "maze"}}] * 2)
    await announce_as_before(raw, "old", earlier(environments=["maze"]))
    await store.offers.look()
    assert [ticket.offer for ticket in await store.outbox.reserve(Priority.DEFAULT, 1)] == [""]
    batch = new_batch()
    await store.batches.submit(batch)
    status = await store.batches.status(batch.batch_id, None)
    assert status is not None
    assert [one.message for one in status.waiting] == [
        "all live workers are of an earlier release, which gets no new work; start workers of this one"
    ]
    await announce(store, "new")
    await store.offers.look()
    # The old one reads no queue of its own, so what only it has can't be sent to it alone.
    assert [(ticket.batch_id, ticket.offer) for ticket in await store.outbox.reserve(Priority.DEFAULT, 9)] == [
        (batch.batch_id, digest_of(spell([RELEASE])))
    ]
    view = await store.rollouts.view(before[1], None)
    assert view is not None
    assert view.waiting is not None
    assert view.waiting.message.startswith("only workers of an earlier release have environment 'maze'")


async def test_a_worker_that_goes_meanwhile_leaves_nothing(
    store: Store, raw: FakeAsyncRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    await announce_as_before(raw, "old", earlier())
    script = store.connection.script

    async def leaving(name: str, *args: object) -> object:
        if name == "offers" and len(args) > 1:
            await store.workers.leave("old")
        return await script(name, *args)

    monkeypatch.setattr(store.connection, "script", leaving)
    await store.offers.look()
    assert await raw.exists(keys.worker("old")) == 0
    assert await noted(raw) == {}


async def test_a_request_gets_the_queue_of_those_that_can_carry_it_out(store: Store) -> None:
    need = ["environment:maze"]
    assert await store.offers.queue_for(need) == ""
    await announce(store, "plain")
    await store.offers.look()
    assert await store.offers.queue_for(need) is None
    assert await store.offers.queue_for([]) == ""
    for worker in ("a", "b"):
        await announce(store, worker, environments=["maze"])
    await announce(store, "c", environments=["maze", "chess"])
    await store.offers.look()
    assert await store.offers.queue_for(need) == MAZE_OFFER
    await store.workers.leave("plain")
    await store.offers.look()
    assert await store.offers.queue_for(need) == ""
