"""A worker pushes results: again until they are taken, and none of them hurts another one."""

import redis.asyncio
from tests.support.batches import finish, status_of, submit
from tests.support.pool import Pool
from tests.support.pushes import settled
from tests.support.scripted_trainer import scripted_trainer
from tests.support.trainer_script import Exchange, status
from tests.support.waiting import until

from rolloutpool_common.capabilities.webhooks.pushes import Pushes
from rolloutpool_common.capabilities.webhooks.wire import Delivery
from rolloutpool_common.rendering import ChatTokenizer


async def end(pool: Pool, url: str, *, attempts: int = 0) -> str:
    """Ends the rollout of a batch with delivery; only the pushing is the worker's."""
    (uid,) = await submit(pool.store, asks={"webhooks": Delivery(callback_url=url, secret="long enough")})
    if attempts:
        async with redis.asyncio.Redis.from_url(pool.url) as raw:
            await raw.hset("rp:push:attempts", uid, str(attempts))
    await finish(pool.store, uid, "nobody")
    return uid


async def test_a_push_that_failed_for_long_is_made_again(pool: Pool, tokenizer: ChatTokenizer) -> None:
    """It used to be given up after the eighth attempt, two minutes after the first one."""
    async with scripted_trainer(tokenizer, status(400), status(503), status(200)) as receiver:
        uid = await end(pool, receiver.url, attempts=40)
        batch_id = uid.rpartition("-")[0]

        async def taken() -> bool:
            await Pushes(pool.store).retry(batch_id, 1)
            return len(receiver.exchanges) >= 3

        await until(taken)
        assert await settled(pool.store, uid) == {"delivered": 1}
        assert {request.header("webhook-id") for request in receiver.exchanges} == {uid}


async def test_an_impossible_address_hurts_no_other_push(pool: Pool, tokenizer: ChatTokenizer) -> None:
    async with scripted_trainer(tokenizer, status(200)) as receiver:
        for url in ("http://127.0.0.1:99999", "http://" + "a" * 300, "http://[::1"):
            bad = await end(pool, url)
            good = await end(pool, receiver.url)
            assert await settled(pool.store, good) == {"delivered": 1}
            assert (await status_of(pool.store, bad)).delivery["pending"] == 1


async def test_the_body_of_a_pushs_answer_is_not_read(pool: Pool, tokenizer: ChatTokenizer) -> None:
    async def endless(exchange: Exchange) -> None:
        await exchange.raw(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            await exchange.raw(b"x" * 65536)

    async with scripted_trainer(tokenizer, endless) as receiver:
        uid = await end(pool, receiver.url)
        assert await settled(pool.store, uid) == {"delivered": 1}
        assert len(receiver.exchanges) == 1
