"""What a trainer does with the pool: submits, reads by cursor, takes pushes. Its log says what it was promised and got.

It forgives every outage and no contradiction: it asks again for as long as it takes, at one API process or another, and
writes down each answer as it came, without dropping what came twice.
"""

import asyncio
import base64
import random
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from tests.chaos.manners import Manner
from tests.chaos.record import Record

from rolloutpool_common.protocol.batch import BatchAccepted
from rolloutpool_common.protocol.result import RolloutResult
from rolloutpool_trainer import verify_push
from rolloutpool_trainer.client import calls
from rolloutpool_trainer.client.aio import AsyncRolloutClient
from rolloutpool_trainer.client.aio_batch import AsyncBatch
from rolloutpool_trainer.errors import PoolUnavailable

SECRET = "whsec_" + base64.b64encode(b"a campaign's key for its pushes!").decode()
WAIT = 5.0
"""Seconds that a look for results may be held."""
REFUSES = 0.05
"""How often the receiver of pushes says 503."""

T = TypeVar("T")
Item = tuple[Manner, dict[str, Any]]
"""A rollout to submit and the manner of the port that it goes to."""


class Consumer:
    """One client of all API processes."""

    def __init__(self, urls: Sequence[str], record: Record, rng: random.Random, key: str | None = None) -> None:
        self.open = 0
        """Rollouts that are to be submitted now, or were, and whose result was not read yet."""
        self.accepted: list[str] = []
        """The uids of all rollouts, in order."""
        self.unpushed: set[str] = set()
        """Rollouts that have to be pushed and were not."""
        self.receiver = Starlette(routes=[Route("/results", self._take, methods=["POST"])])
        self._record = record
        self._rng = rng
        self._clients = [AsyncRolloutClient(url, key, timeout=1.0) for url in urls]

    async def submit(self, key: str, items: Sequence[Item], push_to: str | None, again: int) -> None:
        """Submits a batch, `again` more times at once under the same key, and reads it to its end."""
        accepted = await asyncio.gather(*(self._submit(key, items, push_to) for _ in range(1 + again)))
        for answer in accepted:
            self._record.write(
                "accepted",
                key=key,
                batch=answer.batch_id,
                rollouts=answer.rollouts,
                manners=[manner for manner, _ in items],
                graders=[fields["grader"]["name"] if "grader" in fields else None for _, fields in items],
                environments=[
                    fields["environment"]["name"] if "environment" in fields else None for _, fields in items
                ],
                groups=[fields.get("group") for _, fields in items],
                pushed=push_to is not None,
            )
        self.accepted += accepted[0].rollouts
        if push_to is not None:
            self.unpushed.update(accepted[0].rollouts)
        await self._read(accepted[0].batch_id)

    async def tools(self) -> list[dict[str, Any]]:
        """The pool's tools, as prompts have them."""
        return [tool.model_dump() for tool in await self._ask(calls.tools())]

    async def workers(self) -> int:
        """How many workers are alive."""
        return sum(worker.alive for worker in (await self._ask(calls.workers())).workers)

    async def close(self) -> None:
        """Closes all connections."""
        for client in self._clients:
            await client.close()

    async def _submit(self, key: str, items: Sequence[Item], push_to: str | None) -> BatchAccepted:
        def submit(client: AsyncRolloutClient) -> Coroutine[Any, Any, AsyncBatch]:
            return client.submit(
                [item for _, item in items],
                defaults={"tokenizer_name": "rolloutpool/tiny", "idempotent": True},
                delivery=None if push_to is None else {"callback_url": push_to, "secret": SECRET},
                idempotency_key=key,
            )

        batch = await self._insist(submit)
        assert batch.accepted is not None
        return batch.accepted

    async def _read(self, batch_id: str) -> None:
        cursor, complete = "0", False
        read: dict[str, str] = {}
        while not complete:
            page = await self._ask(replace(calls.results(batch_id, cursor, wait=WAIT), read_seconds=WAIT + 10))
            cursor, complete = page.next_cursor, page.complete
            for item in page.items:
                epoch, _, place = item.cursor.partition(".")
                # A start of Redis begins an epoch, in which all is read again: the same place is the same delivery.
                again = read.get(place, epoch) != epoch
                self._note("again" if again else "result", item.result)
                self.open -= not again
                read[place] = epoch

    async def _take(self, request: Request) -> Response:
        event = verify_push(SECRET, request.headers, await request.body())
        # Before it is noted: what was refused was not delivered.
        if random.random() < REFUSES:
            return Response(status_code=503)
        self._note("push", event.data, id=request.headers["webhook-id"])
        self.unpushed.discard(event.data.uid)
        return Response(status_code=204)

    def _note(self, event: str, result: RolloutResult, **more: Any) -> None:
        self._record.write(event, uid=result.uid, result=result.model_dump(mode="json"), **more)

    async def _ask(self, call: calls.Call[T]) -> T:
        return await self._insist(lambda client: client.ask(call))

    async def _insist(self, ask: Callable[[AsyncRolloutClient], Coroutine[Any, Any, T]]) -> T:
        while True:
            try:
                return await ask(self._rng.choice(self._clients))
            except PoolUnavailable:
                continue
