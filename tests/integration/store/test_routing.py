"""Where only some workers can run a rollout, its message goes to a queue that only those read."""

import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from redis.asyncio import Redis
from tests.support.batches import announce, submit

from rolloutpool_common.protocol.batch import Priority
from rolloutpool_common.protocol.offers import RELEASE, digest_of, spell
from rolloutpool_common.queue import publisher as publishing
from rolloutpool_common.queue.celery_app import KEY_PREFIX, make_celery, queue_name
from rolloutpool_common.queue.publisher import Publisher
from rolloutpool_common.store import Store

MAZE = {"environment": {"name": "maze"}}
OFFER = digest_of(spell(["environment:maze", RELEASE]))
ORDINARY, OWN = (KEY_PREFIX + queue_name(Priority.DEFAULT, offer) for offer in ("", OFFER))


@pytest.fixture
async def publisher(store: Store, redis_url: str) -> AsyncIterator[Publisher]:
    """With up to eight rollouts in a message; of four workers one has the maze."""
    for n in range(3):
        await announce(store, f"w{n}", slots=256)
    await announce(store, "maze", slots=256, environments=["maze"])
    made = Publisher(store, redis_url, per_message=8)
    await made.follow_offers()
    yield made
    made.close()


async def indexes(raw: Redis, queue: str) -> list[list[int]]:
    """The indexes that each message of a queue brings, oldest first."""
    messages = [json.loads(text) for text in reversed(await raw.lrange(queue, 0, -1))]
    bodies = [json.loads(base64.b64decode(message["body"])) for message in messages]
    return [[index for _, index in body[0][0]] for body in bodies]


async def test_a_message_brings_rollouts_of_one_queue(store: Store, publisher: Publisher, raw: Redis) -> None:
    await submit(store, [MAZE if n % 2 else {} for n in range(40)])
    assert await publisher.pump() == 40
    ordinary, own = await indexes(raw, ORDINARY), await indexes(raw, OWN)
    assert max(map(len, (*ordinary, *own))) > 1
    assert [index for message in ordinary for index in message] == list(range(0, 40, 2))
    assert [index for message in own for index in message] == list(range(1, 40, 2))


async def test_the_broker_remembers_no_names_of_offers(publisher: Publisher, store: Store, raw: Redis) -> None:
    await submit(store, [MAZE])
    assert await publisher.pump() == 1
    await store.workers.leave("maze")
    await publisher.follow_offers()
    await publisher.follow_offers()
    assert [key async for key in raw.scan_iter(f"*{OFFER}*") if not key.startswith("rp:batch:")] == []
    for key in [key async for key in raw.scan_iter("*_kombu*")]:
        assert not [member for member in await raw.smembers(key) if OFFER in str(member)]


async def test_a_message_that_is_lost_in_one_queue_is_found_while_others_wait(
    store: Store, publisher: Publisher, raw: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "SLACK_MS", 0)
    await submit(store, [MAZE, {}])
    assert await publisher.pump() == 2
    assert await publisher.recover() == 0
    await raw.delete(OWN)
    assert await publisher.recover() == 1
    assert await publisher.pump() == 1
    assert (await indexes(raw, ORDINARY), await indexes(raw, OWN)) == ([[1]], [[0]])
    await raw.delete(ORDINARY)
    assert await publisher.recover() == 1
    assert await publisher.pump() == 1
    assert (await indexes(raw, ORDINARY), await indexes(raw, OWN)) == ([[1]], [[0]])


@pytest.mark.parametrize(("offer", "more"), [("", []), (OFFER, [queue_name(p, OFFER) for p in Priority])])
def test_a_worker_reads_the_ordinary_queues_and_those_of_its_offer(offer: str, more: list[str]) -> None:
    queues: list[Any] = make_celery("redis://nowhere", offer).conf.task_queues
    assert [queue.name for queue in queues] == [*(queue_name(priority) for priority in Priority), *more]
