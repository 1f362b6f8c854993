"""Pushed results: signed, the whole record, again until they are taken, dead-lettered where they are not."""

import base64
import time

import pytest
import redis.asyncio
from tests.support.batches import OWNER, claim, new_batch, result_of, uids_of
from tests.support.pool import Pool
from tests.support.scripted_trainer import scripted_trainer
from tests.support.trainer_script import Exchange, status
from tests.support.waiting import until

from rolloutpool_common.capabilities.webhooks.push import PushEvent, SignatureInvalid, verify
from rolloutpool_common.capabilities.webhooks.pushes import Pushes
from rolloutpool_common.capabilities.webhooks.wire import Delivery
from rolloutpool_common.rendering import ChatTokenizer

SECRET = "whsec_" + base64.b64encode(b"0123456789abcdef").decode()


async def end(pool: Pool, url: str, count: int = 1, *, attempts: int = 0, secret: str = SECRET) -> list[str]:
    """Ends rollouts of a batch with delivery; only the pushing is the worker's."""
    batch = new_batch(count, asks={"webhooks": Delivery(callback_url=url, secret=secret)}, labels={"run": "7"})
    await pool.store.batches.submit(batch)
    for uid in uids_of(batch):
        if attempts:
            async with redis.asyncio.Redis.from_url(pool.url) as raw:
                await raw.hset("rp:push:attempts", uid, str(attempts))
        claimed = await claim(pool.store, uid, "nobody")
        await pool.store.rollouts.finish(claimed, result_of(claimed, metadata={"text": "é☃" * 3000}))
    return uids_of(batch)


async def settled(pool: Pool, uid: str) -> dict[str, int]:
    """The batch's pushes by state, once none is pending."""

    async def look() -> dict[str, int] | None:
        status = await pool.store.batches.status(uid.rpartition("-")[0], OWNER)
        assert status is not None
        return None if status.delivery.get("pending") else status.delivery

    return {state: n for state, n in (await until(look)).items() if n}


def event(request: Exchange, secret: str = SECRET) -> PushEvent:
    """What was pushed, verified as a receiver does."""
    verify(
        secret,
        request.header("webhook-id") or "",
        request.header("webhook-timestamp") or "",
        request.content,
        request.header("webhook-signature") or "",
        now=time.time(),
    )
    return PushEvent.model_validate_json(request.content)


async def test_a_push_is_signed_and_carries_the_whole_result(pool: Pool, tokenizer: ChatTokenizer) -> None:
    async with scripted_trainer(tokenizer, status(204)) as receiver:
        uids = await end(pool, receiver.url + "/hook?a=b", 5)
        assert await settled(pool, uids[0]) == {"delivered": 5}
        pushed = {request.header("webhook-id"): request for request in receiver.exchanges}
    assert len(receiver.exchanges) == 5
    for uid in uids:
        stored = await pool.store.rollouts.result(uid)
        assert event(pushed[uid]).data.model_dump_json().encode() == stored
        assert pushed[uid].header("content-type") == "application/json"
        with pytest.raises(SignatureInvalid):
            event(pushed[uid], "another secret")


async def test_a_push_that_failed_for_long_is_made_again(pool: Pool, tokenizer: ChatTokenizer) -> None:
    """It used to be given up after the eighth attempt, two minutes after the first one."""
    async with scripted_trainer(tokenizer, status(400), status(503), status(200)) as receiver:
        (uid,) = await end(pool, receiver.url, attempts=40)
        batch_id = uid.rpartition("-")[0]

        async def taken() -> bool:
            await Pushes(pool.store).retry(batch_id, 1)
            return len(receiver.exchanges) >= 3

        await until(taken)
        assert await settled(pool, uid) == {"delivered": 1}
        assert {request.header("webhook-id") for request in receiver.exchanges} == {uid}


async def test_an_impossible_address_hurts_no_other_push(pool: Pool, tokenizer: ChatTokenizer) -> None:
    async with scripted_trainer(tokenizer, status(200)) as receiver:
        for url in ("http://127.0.0.1:99999", "http://" + "a" * 300, "http://[::1"):
            (bad,) = await end(pool, url)
            (good,) = await end(pool, receiver.url)
            assert await settled(pool, good) == {"delivered": 1}
            state = await pool.store.batches.status(bad.rpartition("-")[0], OWNER)
            assert state is not None
            assert state.delivery["pending"] == 1


async def test_the_body_of_a_pushs_answer_is_not_read(pool: Pool, tokenizer: ChatTokenizer) -> None:
    async def endless(exchange: Exchange) -> None:
        await exchange.raw(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            await exchange.raw(b"x" * 65536)

    async with scripted_trainer(tokenizer, endless) as receiver:
        (uid,) = await end(pool, receiver.url)
        assert await settled(pool, uid) == {"delivered": 1}
        assert len(receiver.exchanges) == 1
