"""Tickets go into Celery's queues with ids and nothing else, and none of them is lost or circles."""

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from kombu.exceptions import OperationalError
from redis import Redis as BlockingRedis
from redis.asyncio import Redis
from tests.support.batches import announce, claim, submit
from tests.support.durable_redis import durable_redis

from rolloutpool_common.protocol.batch import Priority
from rolloutpool_common.protocol.workers import WorkerRole
from rolloutpool_common.queue.celery_app import broker_url, make_celery
from rolloutpool_common.queue.kombu_compat import oldest_headers, purge
from rolloutpool_common.queue.publisher import SLACK_MS, Publisher
from rolloutpool_common.store import Store, StoreUnavailable

QUEUE = "rollouts:rollouts.{}"


@pytest.fixture
async def publisher(store: Store, redis_url: str) -> AsyncIterator[Publisher]:
    made = Publisher(store, redis_url)
    yield made
    made.close()


async def messages(raw: Redis, priority: Priority = Priority.DEFAULT) -> list[dict[str, Any]]:
    """The queue, oldest first."""
    return [json.loads(text) for text in reversed(await raw.lrange(QUEUE.format(priority), 0, -1))]


async def refs(raw: Redis, priority: Priority = Priority.DEFAULT) -> list[list[Any]]:
    """The ids in the queue, oldest first."""
    return [json.loads(_text(message))[0][0] for message in await messages(raw, priority)]


def _text(message: dict[str, Any]) -> str:
    return base64.b64decode(message["body"]).decode()


async def test_a_ticket_carries_ids_and_nothing_else(store: Store, publisher: Publisher, raw: Any) -> None:
    before = {key async for key in raw.scan_iter("*")}
    uids = await submit(
        store,
        [{"messages": [{"role": "user", "content": "PROMPT-MARKER"}], "metadata": {"m": "META-MARKER"}}] * 3,
        shared={"callback_api_key": "KEY-MARKER", "server_url": "http://URL-MARKER"},
        groups=['g"1'] * 3,
        labels={"l": "LABEL-MARKER"},
    )
    ours = {key async for key in raw.scan_iter("rp:*")}
    assert await publisher.pump() == 3
    batch_id = uids[0].rpartition("-")[0]
    assert await refs(raw) == [[[batch_id, i]] for i in range(3)]
    for message in await messages(raw):
        shown = message["headers"]["argsrepr"]
        assert shown.startswith(f"batch={batch_id} index=")
        assert shown.endswith('group="g\\"1"')
    # All that Celery and kombu keep, whatever it is.
    theirs = [key async for key in raw.scan_iter("*") if key not in ours | before and not key.startswith("rp:")]
    assert theirs
    for key in theirs:
        assert "MARKER" not in key
        dumped = await raw.execute_command("DUMP", key, NEVER_DECODE=True)
        assert b"MARKER" not in dumped
        assert "MARKER" not in "".join(map(_text, await messages(raw)))


async def test_each_priority_has_its_queue_and_tickets_keep_their_order(
    store: Store, publisher: Publisher, raw: Redis
) -> None:
    for priority in Priority:
        await submit(store, 5, priority=priority)
    assert await publisher.pump() == 15
    for priority in Priority:
        assert [ref[0][1] for ref in await refs(raw, priority)] == list(range(5))


async def sizes(raw: Redis) -> list[int]:
    """How many rollouts each message brings, oldest first."""
    return [len(tickets) for tickets in await refs(raw)]


@pytest.fixture
async def sharing(store: Store, redis_url: str) -> AsyncIterator[Publisher]:
    made = Publisher(store, redis_url, per_message=8)
    yield made
    made.close()


async def announced(store: Store, *slots: int) -> None:
    for number, count in enumerate(slots):
        await announce(store, f"w{number}", slots=count)


async def test_where_many_wait_several_rollouts_share_a_message(store: Store, sharing: Publisher, raw: Redis) -> None:
    await announced(store, 256)
    uids = await submit(store, 300)
    window = await sharing.pump()
    assert window < 300
    assert await sizes(raw) == [8] * (window // 8)
    batch_id = uids[0].rpartition("-")[0]
    assert [ref for tickets in await refs(raw) for ref in tickets] == [[batch_id, i] for i in range(window)]


async def test_the_last_ones_are_spread_over_all_workers(store: Store, sharing: Publisher, raw: Redis) -> None:
    await announced(store, 256, 256)
    await submit(store, 10)
    assert await sharing.pump() == 10
    assert await sizes(raw) == [2] * 5


async def test_a_few_share_a_message_where_workers_have_much_to_do(
    store: Store, sharing: Publisher, raw: Redis
) -> None:
    await announced(store, 256, 256)
    for uid in await submit(store, 64):
        await claim(store, uid)
    for _ in range(5):
        await submit(store, 1)
    await sharing.pump()
    assert (await sizes(raw))[-1] == 5


async def test_rollouts_that_come_one_by_one_are_gathered_in_a_busy_pool_only(
    store: Store, sharing: Publisher, raw: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rolloutpool_common.queue.publisher.GATHER_SECONDS", 1.0)
    await announced(store, 256, 256)
    began = time.monotonic()
    for _ in range(3):
        await submit(store, 1)
        await sharing.pump()
    assert time.monotonic() - began < 1
    for uid in await submit(store, 64):
        await claim(store, uid)
    await submit(store, 1)
    await sharing.pump()
    before = len(await sizes(raw))
    pumping = asyncio.create_task(sharing.pump())
    for _ in range(3):
        await asyncio.sleep(0.01)
        await submit(store, 1)
    await pumping
    assert (await sizes(raw))[before:] == [3]


@pytest.mark.parametrize(("slots", "most"), [((256, 24), 3), ((7, 256), 1), ((), 1)])
async def test_a_message_brings_an_eighth_of_the_smallest_workers_slots(
    store: Store, sharing: Publisher, raw: Redis, slots: tuple[int, ...], most: int
) -> None:
    await announced(store, *slots)
    await announce(store, "of-a-suspect", slots=1, role=WorkerRole.ISOLATED)
    await submit(store, 600)
    await sharing.pump()
    assert max(await sizes(raw)) == most


async def test_flower_shows_every_batch_and_group_of_a_message(store: Store, sharing: Publisher, raw: Redis) -> None:
    await announced(store, 256)
    # Runs take turns, so that a message brings rollouts of both.
    first = await submit(store, 200, groups=["a"] * 200, run="one")
    second = await submit(store, 200, groups=["b", "c"] * 100, run="two")
    await sharing.pump()
    shown = (await messages(raw))[0]["headers"]["argsrepr"]
    one, two = (uids[0].rpartition("-")[0] for uids in (first, second))
    assert shown == f'batch={one} index=0,1,2,3 group="a" batch={two} index=0,1,2,3 group="b","c"'


async def test_a_message_is_named_by_its_batch_unless_that_has_one_rollout(
    store: Store, sharing: Publisher, raw: Redis
) -> None:
    await announced(store, 256)
    first = await submit(store, 100, run="one")
    await sharing.pump()
    batch_id = first[0].rpartition("-")[0]
    assert {message["headers"]["shadow"] for message in await messages(raw)} == {f"batch {batch_id}"}
    # What the worker runs is the same task.
    assert {message["headers"]["task"] for message in await messages(raw)} == {"rolloutpool.ticket"}
    for priority, sizes_of in ((Priority.HIGH, (1, 1, 1)), (Priority.LOW, (50, 50))):
        for number, rollouts in enumerate(sizes_of):
            await submit(store, rollouts, priority=priority, run=f"r{number}")
    await sharing.pump()
    assert {message["headers"]["shadow"] for message in await messages(raw, Priority.HIGH)} == {None}
    assert "several batches" in {message["headers"]["shadow"] for message in await messages(raw, Priority.LOW)}


async def aged(raw: Any, seconds: float) -> None:
    """As if everything had been published so much earlier."""
    for uid, score in await raw.zrange("rp:published:default", 0, -1, withscores=True):
        await raw.zadd("rp:published:default", {uid: score - seconds * 1000})
    queue = QUEUE.format(Priority.DEFAULT)
    for i, text in enumerate(await raw.lrange(queue, 0, -1)):
        message = json.loads(text)
        message["headers"]["rolloutpool_published_ms"] -= seconds * 1000
        await raw.lset(queue, i, json.dumps(message))


async def test_tickets_that_wait_are_not_lost_however_long(store: Store, publisher: Publisher, raw: Redis) -> None:
    await submit(store, 20)
    await publisher.pump()
    await aged(raw, 3600)
    assert await publisher.recover() == 0
    assert await raw.llen(QUEUE.format(Priority.DEFAULT)) == 20


async def test_tickets_that_vanished_are_published_again(store: Store, publisher: Publisher, raw: Redis) -> None:
    uids = await submit(store, 5)
    await publisher.pump()
    first = [message["headers"]["id"] for message in await messages(raw)]
    await aged(raw, SLACK_MS / 1000 + 1)
    await raw.delete(QUEUE.format(Priority.DEFAULT))
    assert await publisher.recover() == 5
    assert await publisher.recover() == 0
    assert await publisher.pump() == 5
    assert sorted(ref[0][1] for ref in await refs(raw)) == list(range(5))
    # The same tickets to Flower: under other ids the first ones would be pending there for ever.
    assert {message["headers"]["id"] for message in await messages(raw)} == {*first}
    assert (await claim(store, uids[3])).attempt == 1


async def test_a_ticket_that_was_published_a_moment_ago_is_on_its_way(
    store: Store, publisher: Publisher, raw: Redis
) -> None:
    await submit(store, 5)
    await publisher.pump()
    await raw.delete(QUEUE.format(Priority.DEFAULT))
    assert await publisher.recover() == 0


async def test_what_was_reserved_by_a_process_that_died_is_published_by_another(
    store: Store, publisher: Publisher, raw: Redis
) -> None:
    await submit(store, 5)
    assert len(await store.outbox.reserve(Priority.DEFAULT, 5)) == 5  # and then it died
    assert await publisher.pump() == 0
    await aged(raw, SLACK_MS / 1000 + 1)
    await submit(store, 2)
    await publisher.pump()  # the queue is not empty: younger tickets wait there
    assert await publisher.recover() == 5
    assert await publisher.pump() == 5


async def test_the_broker_is_not_asked_where_nothing_is_published(
    store: Store, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []
    monkeypatch.setattr(publisher, "_oldest_waiting_ms", looked.append)
    (uid,) = await submit(store, 1)
    await publisher.recover()
    assert looked == []
    await publisher.pump()
    await publisher.recover()
    assert len(looked) == len(Priority)
    await claim(store, uid)
    await publisher.recover()
    assert len(looked) == len(Priority)


async def test_a_broker_that_is_away_delays_tickets_and_loses_none(
    store: Store, redis_url: str, publisher: Publisher, raw: Redis
) -> None:
    away = Publisher(store, "redis://127.0.0.1:9/0")
    away._celery.conf.broker_transport_options = {"socket_connect_timeout": 1, "max_retries": 0}
    await submit(store, 3)
    with pytest.raises(StoreUnavailable) as caught:
        await away.pump()
    assert "127.0.0.1" not in caught.value.message
    away.close()
    await aged(raw, SLACK_MS / 1000 + 1)
    assert await publisher.recover() == 3
    assert await publisher.pump() == 3


def test_a_broker_that_goes_away_while_it_is_asked_raises_what_publishers_know() -> None:
    with durable_redis() as redis, make_celery(redis.url).connection_for_write() as connection:
        assert oldest_headers(connection, "rollouts") is None
        redis.kill()
        with pytest.raises(OperationalError):
            oldest_headers(connection, "rollouts")


async def test_a_connection_that_is_made_anew_within_a_batch_delays_tickets_and_loses_none(
    store: Store, publisher: Publisher, raw: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As kombu makes it where Redis was started again: it has no error for the messages that the old one had."""
    send = publisher._send

    def sent(producer: Any, *rest: Any) -> None:
        send(producer, *rest)
        producer.revive(producer.connection.channel())

    with monkeypatch.context() as patch:
        patch.setattr(publisher, "_send", sent)
        await submit(store, 2)
        with pytest.raises(StoreUnavailable):
            await publisher.pump()
    await aged(raw, SLACK_MS / 1000 + 1)
    assert await publisher.recover() == 2
    assert await publisher.pump() == 2


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://h:1/0", "redis://h:1/0"),
        ("rediss://:p@h:1/0", "rediss://:p@h:1/0"),
        ("unix:///run/r.sock", "redis+socket:///run/r.sock"),
        ("unix://:p%40@/run/r.sock", "redis+socket://:p%40@/run/r.sock"),
        ("unix:///run/r.sock?db=3", "redis+socket:///run/r.sock?virtual_host=3"),
    ],
)
def test_a_url_in_kombu_s_spelling(url: str, expected: str) -> None:
    assert broker_url(url) == expected


def pool(connection: Any) -> Any:
    return connection.default_channel.pool


def test_channels_of_one_url_share_their_connections_for_commands(redis_url: str) -> None:
    # A database of its own: the pool of the others' may still be there.
    url, another = redis_url.replace("/0", "/3"), redis_url.replace("/0", "/4")
    first, second = make_celery(url), make_celery(url)
    with (
        BlockingRedis.from_url(redis_url) as raw,
        first.connection_for_write() as one,
        second.connection_for_write() as other,
    ):
        before = len(raw.client_list())
        for n in range(5):
            for connection in (one, other):
                assert pool(connection) is pool(one)
                purge(connection, f"nothing{n}")
        assert len(raw.client_list()) - before == 1
        # Another URL is another pool.
        with make_celery(another).connection_for_write() as third:
            assert pool(third) is not pool(one)
        # One that is closed takes nothing from the others, and connections that were cut are made again.
        other.release()
        purge(one, "nothing")
        raw.client_kill_filter(_type="normal", skipme=True)
        purge(one, "nothing")
