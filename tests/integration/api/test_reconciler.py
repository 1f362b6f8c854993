"""The reconciler works beside the API's event loop, so a busy loop delays neither the lead nor a recovery."""

import threading
import time

import redis
from tests.support.batches import announce, claim, submit, view_of
from tests.support.inside_api import running_api
from tests.support.waiting import eventually, until_true

from rolloutpool_common.outcomes import RolloutStatus
from rolloutpool_common.protocol.process_end import ProcessEnd
from rolloutpool_common.store import Store


async def test_a_busy_loop_costs_neither_the_lead_nor_time(redis_url: str) -> None:
    store = Store.open(redis_url)
    with redis.Redis.from_url(redis_url) as raw:
        async with running_api(redis_url):
            await until_true(lambda: raw.get("rp:leader"))
            leader = raw.get("rp:leader")
            (uid,) = await submit(store)
            await announce(store, "w")
            await claim(store, uid, "w")
            await store.workers.report_end("w", ProcessEnd.of(-9))
            queued = threading.Event()

            def watch() -> None:
                eventually(lambda: raw.hget(f"rp:rollout:{uid}", "status") == b"queued")
                queued.set()

            thread = threading.Thread(target=watch)
            thread.start()
            # The API runs in this very loop. Longer than the lock lasts.
            time.sleep(4)  # noqa: ASYNC251
            assert queued.is_set()
            assert raw.get("rp:leader") == leader
            assert int(raw.pttl("rp:leader")) > 1500
            thread.join()
            view = await view_of(store, uid)
            assert view.status is RolloutStatus.QUEUED
        # Given up at once, so that another process need not wait.
        assert raw.get("rp:leader") is None
    await store.close()
