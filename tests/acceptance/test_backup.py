"""A pool that lost its Redis goes on from a copy that was taken while it worked: docs/operations.md, *Backup*."""

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from tests.acceptance.test_pool import assert_exact, items
from tests.support.durable_redis import DurableRedis, durable_redis
from tests.support.waiting import eventually

from rolloutpool_common.outcomes import Category, RolloutStatus
from rolloutpool_common.rendering import TINY, ChatTokenizer
from rolloutpool_trainer import LocalPool, callback_app, verify_push
from rolloutpool_trainer.endpoint.app import CallbackApp
from rolloutpool_trainer.endpoint.server import serve_callback
from rolloutpool_trainer.errors import NotFound
from rolloutpool_trainer.testing import ScriptedPolicy

ROLLOUTS = 40
SLOTS = 8
SECRET = "whsec_" + base64.b64encode(b"a receiver's key, for its pushes").decode()


@contextmanager
def pool_on(server: DurableRedis, state: Path) -> Iterator[LocalPool]:
    # A worker of the time before the copy is a stranger to the new pool: nobody can tell that its process is gone.
    env = {"ROLLOUTPOOL_WORKER_SLOTS": str(SLOTS), "ROLLOUTPOOL_STALLED_SECONDS": "12"}
    with LocalPool(1, flower=False, tokenizers=[TINY], redis_url=server.url, state=state, env=env) as pool:
        yield pool


def slow(tokenizer: ChatTokenizer) -> CallbackApp:
    return callback_app(ScriptedPolicy(tokenizer, latency=0.1, turns=3), tokenizer=tokenizer)


def promises_nothing(app: CallbackApp) -> ASGIApp:
    """The same trainer without the header that declares its turns idempotent."""

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        async def say(message: Message) -> None:
            headers = [pair for pair in message.get("headers", ()) if pair[0].lower() != b"x-idempotent-turns"]
            await send({**message, "headers": headers} if "headers" in message else message)

        await app(scope, receive, say)

    return serve


class Receiver:
    """Takes pushes, and keeps under which ids each rollout's came."""

    def __init__(self) -> None:
        self.app = Starlette(routes=[Route("/results", self._take, methods=["POST"])])
        self.came: dict[str, list[str]] = {}

    async def _take(self, request: Request) -> Response:
        event = verify_push(SECRET, request.headers, await request.body())
        self.came.setdefault(event.data.uid, []).append(request.headers["webhook-id"])
        return Response()


@pytest.mark.slow
def test_a_pool_goes_on_from_a_copy(tokenizer: ChatTokenizer, tmp_path: Path) -> None:
    safe, unsafe, copy, receiver = slow(tokenizer), slow(tokenizer), tmp_path / "pool.rdb", Receiver()
    options = {"tokenizer_name": TINY}
    with (
        durable_redis() as server,
        serve_callback(safe, [0]) as promising,
        serve_callback(promises_nothing(unsafe), [0]) as silent,
        serve_callback(receiver.app, [0]) as pushed,
    ):
        rollouts = [
            {**item, "server_url": (promising, silent)[index % 2].url} for index, item in enumerate(items(ROLLOUTS))
        ]
        with pool_on(server, tmp_path / "state") as pool, pool.client() as client:
            purged = client.submit(rollouts[:1], defaults=options, trainer=promising.url)
            assert len(list(purged.results())) == 1
            delivery = {"callback_url": f"{pushed.url}/results", "secret": SECRET}
            batch = client.submit(rollouts, defaults=options, delivery=delivery)
            eventually(lambda: batch.status().counts[RolloutStatus.COMPLETED] >= SLOTS)
            server.copy(copy)
            before = list(batch.results())
            eventually(lambda: len(receiver.came) == ROLLOUTS)
            purged.purge()
            later = client.submit(rollouts[:1], defaults=options, idempotency_key="step-2")
        server.restore(copy)
        with pool_on(server, tmp_path / "state") as pool, pool.client() as client:
            assert SLOTS <= client.batch(batch.batch_id).status().counts[RolloutStatus.COMPLETED] < ROLLOUTS
            # A reader goes on with its cursor, which is of another life of Redis: it reads from the start.
            results = list(client.batch(batch.batch_id).results(cursor=before[-1].cursor))
            with pytest.raises(NotFound):
                client.batch(later.batch_id).status()
            assert client.batch(purged.batch_id).status().counts[RolloutStatus.COMPLETED] == 1
            again = client.submit(rollouts[:1], defaults=options, idempotency_key="step-2")
            assert [result.status for result in again.results()] == [RolloutStatus.COMPLETED]
            eventually(lambda: all(len(receiver.came[result.uid]) > 1 for result in results if result.attempt > 1))
    assert sorted(result.index for result in results) == list(range(ROLLOUTS))
    # What was delivered since the copy comes again under the same id, so that its receiver drops it.
    assert {uid for uid, ids in receiver.came.items() if len(set(ids)) > 1} == set()
    promised = [result for result in results if result.index % 2 == 0]
    # The trainer still had what it had sampled, so what ran again is what was read before.
    assert_exact(safe, promised)
    assert safe.sampling_log.repeated() == {}
    # What had a call in the air when the copy was taken runs on as attempt 2, or fails where nothing is promised.
    assert {result.attempt for result in promised} == {1, 2}
    failed = [result.failure for result in results if result.failure is not None]
    assert 0 < len(failed) <= SLOTS
    assert {failure.category for failure in failed} == {Category.AMBIGUOUS_TURN}
