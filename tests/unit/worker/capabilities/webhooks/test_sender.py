"""Finished results reach the trainer's webhook, signed, until they are taken or given up."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import Any

import pytest
from tests.support.batches import OWNER, beat, finish, submit
from tests.support.pushes import settled
from tests.support.scripted_trainer import ScriptedTrainer, scripted_trainer
from tests.support.trainer_script import Step, close, hang, status
from tests.support.waiting import until, until_true

from rolloutpool_common.capabilities.webhooks.push import PushEvent, verify
from rolloutpool_common.capabilities.webhooks.pushes import DuePush, Pushes
from rolloutpool_common.capabilities.webhooks.wire import Delivery
from rolloutpool_common.process.backoff import Backoff
from rolloutpool_common.rendering import ChatTokenizer
from rolloutpool_common.security.targets import Targets
from rolloutpool_common.store import Store
from rolloutpool_worker.capabilities.webhooks import sender as webhooks
from rolloutpool_worker.capabilities.webhooks.sender import AT_ONCE, OWNER_SHARE, SHARE, WebhookSender
from rolloutpool_worker.policy.resolver import Resolver
from rolloutpool_worker.policy.transport import AiohttpTransport

SECRET = "long enough"


@pytest.fixture
async def transport() -> AsyncIterator[AiohttpTransport]:
    made = AiohttpTransport(Resolver(Targets.loopback()), timeout=5)
    yield made
    await made.aclose()


async def pushed(
    store: Store, transport: AiohttpTransport, receiver: ScriptedTrainer, url: str | None = None
) -> tuple[str, dict[str, int]]:
    """The uid of a rollout that ended, and what became of its push."""
    (uid,) = await submit(store, asks={"webhooks": Delivery(callback_url=url or receiver.url, secret=SECRET)})
    await finish(store, uid, metadata={"text": "é☃" * 3000})
    sender = WebhookSender(store, transport)

    async def stop_when_settled() -> dict[str, int]:
        try:
            return await settled(store, uid)
        finally:
            sender.stop()

    _, found = await asyncio.gather(sender.run(), stop_when_settled())
    return uid, found


async def test_a_push_carries_the_stored_result_and_a_signature(
    store: Store, transport: AiohttpTransport, tokenizer: ChatTokenizer
) -> None:
    async with scripted_trainer(tokenizer, status(204)) as receiver:
        uid, found = await pushed(store, transport, receiver)
    assert found == {"delivered": 1}
    (push,) = receiver.exchanges
    headers = [push.headers[f"webhook-{name}"] for name in ("id", "timestamp", "signature")]
    assert (headers[0], push.headers["content-type"]) == (uid, "application/json")
    verify(SECRET, headers[0], headers[1], push.content, headers[2], now=time.time())
    event = PushEvent.model_validate_json(push.content)
    assert event.data.model_dump_json().encode() == await store.rollouts.result(uid)


@pytest.mark.parametrize(
    ("script", "found", "pushes"),
    [
        ([status(500), status(200)], {"delivered": 1}, 2),
        ([close(), status(200)], {"delivered": 1}, 2),
        ([status(410)], {"dead": 1}, 1),
    ],
    ids=["refused once", "hung up once", "gone for good"],
)
async def test_a_push_is_made_again_under_its_id_unless_the_receiver_is_gone(
    store: Store,
    transport: AiohttpTransport,
    tokenizer: ChatTokenizer,
    script: Sequence[Step],
    found: dict[str, int],
    pushes: int,
) -> None:
    async with scripted_trainer(tokenizer, *script) as receiver:
        uid, became = await pushed(store, transport, receiver)
    assert became == found
    assert [push.headers["webhook-id"] for push in receiver.exchanges] == [uid] * pushes


@pytest.mark.parametrize(
    ("step", "waits"),
    [(status(503), True), (status(429), True), (close(), True), (status(400), False), (status(302), False)],
    ids=["503", "429", "hung up", "400", "302"],
)
async def test_a_receiver_that_is_down_has_one_pause_for_all_it_is_to_get(
    store: Store,
    transport: AiohttpTransport,
    tokenizer: ChatTokenizer,
    monkeypatch: pytest.MonkeyPatch,
    step: Step,
    waits: bool,
) -> None:
    monkeypatch.setattr(webhooks, "BACKOFF", Backoff(first_s=600.0, longest_s=600.0))
    async with scripted_trainer(tokenizer, step) as receiver:
        await ended(store, receiver.url, 1)
        sender = WebhookSender(store, transport)
        running = asyncio.create_task(sender.run())
        await until_true(lambda: receiver.exchanges)
        sender.stop()
        # What is under way is completed.
        await running
        assert len(receiver.exchanges) == 1
        await ended(store, receiver.url, 1)
        # The other one is taken at once where the fault was the first one's own.
        assert len(await Pushes(store).take(9, lease_s=60)) == (0 if waits else 1)


async def test_an_address_that_may_not_be_called_is_given_up_at_once(
    store: Store, transport: AiohttpTransport, tokenizer: ChatTokenizer
) -> None:
    async with scripted_trainer(tokenizer, status(200)) as receiver:
        _, found = await pushed(store, transport, receiver, "http://169.254.169.254/latest")
    assert found == {"dead": 1}
    assert receiver.exchanges == []


async def ended(store: Store, url: str, count: int, owner: str = OWNER) -> None:
    """Ends the rollouts of a batch with this webhook."""
    for uid in await submit(store, count, asks={"webhooks": Delivery(callback_url=url, secret=SECRET)}, owner=owner):
        await finish(store, uid)


@asynccontextmanager
async def pushing(store: Store) -> AsyncIterator[asyncio.Task[None]]:
    """A sender that runs until the block ends."""
    # Patient: with a timeout of seconds, pushes that hang end and are made again while a loaded machine runs the test.
    transport = AiohttpTransport(Resolver(Targets.loopback()), timeout=60)
    async with aclosing(transport):
        running = asyncio.create_task(WebhookSender(store, transport).run())
        try:
            yield running
        finally:
            # Also where a test fails: the receiver that hangs would keep it for as long as it is asked.
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running


async def test_a_receiver_that_hangs_delays_no_other(store: Store, tokenizer: ChatTokenizer) -> None:
    """More of its pushes are due than a worker makes at once, and all of them before the good one's."""
    async with (
        scripted_trainer(tokenizer, hang()) as bad,
        scripted_trainer(tokenizer, status(204)) as good,
        pushing(store) as running,
    ):

        async def round_seconds() -> float:
            """How long it takes to push more to the good receiver than its share."""
            total = len(good.exchanges) + 2 * SHARE
            await ended(store, good.url, 2 * SHARE)
            begun = time.monotonic()
            await until_true(lambda: len(good.exchanges) == total)
            return time.monotonic() - begun

        # About 0.3 s; more on a loaded machine.
        alone = await round_seconds()
        await ended(store, bad.url, AT_ONCE + 8)
        await until_true(lambda: len(bad.exchanges) >= SHARE)
        for _ in range(3):
            # A push that hangs takes 30 s.
            assert await round_seconds() < 1.5 + 4 * alone
        assert len(bad.exchanges) == SHARE
        assert not running.done()


async def test_an_owner_whose_receivers_all_hang_leaves_room_for_others(store: Store, tokenizer: ChatTokenizer) -> None:
    async with scripted_trainer(tokenizer, hang()) as bad, scripted_trainer(tokenizer, status(204)) as good:

        async def came(pushes: int) -> bool:
            return len(good.exchanges) == pushes

        # Each path is a receiver; with their shares alone they would take all places of a worker.
        for path in range(AT_ONCE // SHARE):
            await ended(store, f"{bad.url}/{path}", SHARE)
        async with pushing(store):
            for number in range(1, 4):
                await ended(store, good.url, 1, owner="another")
                await until(partial(came, number), 30)
            assert len(bad.exchanges) == OWNER_SHARE


async def test_nothing_is_asked_while_nothing_is_to_be_pushed(
    store: Store, transport: AiohttpTransport, tokenizer: ChatTokenizer
) -> None:
    looks = 0
    sender = WebhookSender(store, transport)
    take = sender._pushes.take

    async def noted(*args: Any, **named: Any) -> list[DuePush]:
        nonlocal looks
        looks += 1
        return await take(*args, **named)

    sender._pushes.take = noted  # type: ignore[method-assign]
    sender.heard((await beat(store, "w", running=0, tokenizers={})).notes)
    running = asyncio.create_task(sender.run())
    await asyncio.sleep(1)
    # The one with which it starts.
    assert looks == 1
    async with scripted_trainer(tokenizer, status(200)) as receiver:
        (uid,) = await submit(store, asks={"webhooks": Delivery(callback_url=receiver.url, secret=SECRET)})
        await finish(store, uid)
        sender.heard((await beat(store, "w", running=0, tokenizers={})).notes)
        assert await settled(store, uid) == {"delivered": 1}
    sender.heard((await beat(store, "w", running=0, tokenizers={})).notes)
    # It ends although it rests.
    sender.stop()
    await running
