"""Pushed results: signed, the whole record, again until they are taken, dead-lettered where they are not."""

import asyncio
import base64
import time
from collections.abc import Callable
from typing import Any

import pytest
import redis.asyncio
from tests.support.bad_trainer import BadTrainer, Received, bad_trainer, send
from tests.support.batches import OWNER, claim, new_batch, result_of, uids_of
from tests.support.pool import Pool
from tests.support.waiting import until

from rolloutpool_common.protocol.batch import Delivery
from rolloutpool_common.protocol.push import PushEvent, SignatureInvalid, verify
from rolloutpool_worker.process.webhooks import ATTEMPTS

SECRET = "whsec_" + base64.b64encode(b"0123456789abcdef").decode()


def answering(*codes: int) -> Callable[[Received, asyncio.StreamWriter], Any]:
    """Each webhook-id gets these statuses in turn, the last one again and again."""
    seen: dict[str, int] = {}

    async def answer(request: Received, writer: asyncio.StreamWriter) -> None:
        uid = request.header("webhook-id") or ""
        turn = seen.setdefault(uid, 0)
        seen[uid] += 1
        await send(writer, codes[min(turn, len(codes) - 1)])

    return answer


async def end(pool: Pool, url: str, count: int = 1, *, attempts: int = 0, secret: str = SECRET) -> list[str]:
    """Ends rollouts of a batch with delivery; only the pushing is the worker's."""
    batch = new_batch(count, delivery=Delivery(callback_url=url, secret=secret), labels={"run": "7"})
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


def event(request: Received, secret: str = SECRET) -> PushEvent:
    """What was pushed, verified as a receiver does."""
    verify(
        secret,
        request.header("webhook-id") or "",
        request.header("webhook-timestamp") or "",
        request.body,
        request.header("webhook-signature") or "",
        now=time.time(),
    )
    return PushEvent.model_validate_json(request.body)


async def test_a_push_is_signed_and_carries_the_whole_result(pool: Pool) -> None:
    async with bad_trainer(answering(204)) as receiver:
        uids = await end(pool, receiver.url + "/hook?a=b", 5)
        assert await settled(pool, uids[0]) == {"delivered": 5}
        pushed = {request.header("webhook-id"): request for request in receiver.requests}
    assert len(receiver.requests) == 5
    for uid in uids:
        stored = await pool.store.rollouts.result(uid)
        assert event(pushed[uid]).data.model_dump_json().encode() == stored
        assert pushed[uid].header("content-type") == "application/json"
        with pytest.raises(SignatureInvalid):
            event(pushed[uid], "another secret")


async def test_a_plain_text_secret_signs_too(pool: Pool) -> None:
    async with bad_trainer(answering(200)) as receiver:
        (uid,) = await end(pool, receiver.url, secret="just some text")
        await settled(pool, uid)
        assert event(receiver.requests[0], "just some text").data.uid == uid


@pytest.mark.parametrize("code", [500, 429, 404, 302])
async def test_a_refused_push_is_made_again_under_the_same_id(pool: Pool, code: int) -> None:
    async with bad_trainer(answering(code, 200)) as receiver:
        (uid,) = await end(pool, receiver.url)
        assert await settled(pool, uid) == {"delivered": 1}
        assert [request.header("webhook-id") for request in receiver.requests] == [uid, uid]
        for request in receiver.requests:
            assert event(request).data.uid == uid


async def test_a_receiver_that_is_away_gets_it_later(pool: Pool) -> None:
    async def answer(_: Received, writer: asyncio.StreamWriter) -> None:
        if len(receiver.requests) == 1:
            return  # hangs up without a word
        await send(writer, 200)

    receiver: BadTrainer
    async with bad_trainer(answer) as receiver:
        (uid,) = await end(pool, receiver.url)
        assert await settled(pool, uid) == {"delivered": 1}
        assert len(receiver.requests) == 2


async def test_the_last_attempt_is_the_last(pool: Pool) -> None:
    async with bad_trainer(answering(500)) as receiver:
        (uid,) = await end(pool, receiver.url, attempts=ATTEMPTS - 1)
        assert await settled(pool, uid) == {"dead": 1}
        assert len(receiver.requests) == 1
    assert uid in await pool.store.pushes.dead()
    # Polling still works.
    assert await pool.store.rollouts.result(uid) is not None


async def test_gone_is_taken_at_its_word(pool: Pool) -> None:
    async with bad_trainer(answering(410)) as receiver:
        (uid,) = await end(pool, receiver.url)
        assert await settled(pool, uid) == {"dead": 1}
        assert len(receiver.requests) == 1


async def test_an_impossible_address_hurts_no_other_push(pool: Pool) -> None:
    async with bad_trainer(answering(200)) as receiver:
        for url in ("http://127.0.0.1:99999", "http://" + "a" * 300, "http://[::1"):
            (bad,) = await end(pool, url, attempts=ATTEMPTS - 1)
            (good,) = await end(pool, receiver.url)
            assert await settled(pool, good) == {"delivered": 1}
            assert await settled(pool, bad) == {"dead": 1}
