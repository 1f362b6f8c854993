"""`POST /rollout` of protocol v1: submits one rollout and waits for its end.

1. The request waits for one of MAX_CONCURRENT_ROLLOUTS slots. It is not submitted yet, so this wait does not count
   towards the rollout's deadline.
2. The rollout is submitted under its rollout_id and is durable from then on. It does not depend on the wait.
3. The request waits for the result. Its batch is watched from before the submit, so the first look at Redis is when a
   signal says that the rollout has ended.
4. A caller that went away, or whose API process stopped, posts the same body again and joins the rollout that is
   running, or gets the result of the one that has ended.

Where the body is large, another process does step 2 (`submit_only`) and makes the answer (`answer_ticket`), and only
the waits are in the API's own process (`large_bodies`).
"""

import time
from collections.abc import Awaitable, Callable
from typing import Literal, TypeVar

import orjson
import structlog
from fastapi import Response

from rolloutpool_api.body import off_loop
from rolloutpool_api.body_process import TICKET_TYPE, V1Ticket
from rolloutpool_api.errors import Conflict
from rolloutpool_api.services import ApiServices
from rolloutpool_api.submission import plan_v1
from rolloutpool_common.protocol.batch import BatchState
from rolloutpool_common.protocol.v1.request import RolloutRequest
from rolloutpool_common.protocol.v1.response import RolloutResponse, V1Result, V1Status, to_v1
from rolloutpool_common.store import IdempotencyKeyReused, NewBatch, StoreUnavailable, Watch, keys
from rolloutpool_common.store.v1_answers import V1End

T = TypeVar("T")

_log = structlog.stdlib.get_logger(__name__)

GRACE_SECONDS = 15.0
"""Seconds after its deadline until a rollout is found expired, even if another API process has to take over."""
RETRY_SECONDS = 1.0


async def run(services: ApiServices, request: RolloutRequest, owner: str) -> Response:
    """Runs one rollout."""
    new = _plan(services, request, owner)
    async with services.slots:
        # The process may have been told to stop during the wait for a slot. Nothing is submitted yet, so the caller
        # loses nothing.
        services.raise_if_stopping()
        async with services.store.signals.watch(new.batch_id) as watch:
            ticket = await _submit(services, request, new)

            async def ended() -> V1End | Literal[False] | None:
                end = await services.store.rollouts.v1_end(keys.uid_of(ticket.batch_id, 0))
                # As `purge-owner` does it in the moment of its end: no result comes any more.
                return False if end is None and await services.store.batches.is_deleted(ticket.batch_id) else end

            if ticket.batch_id == new.batch_id:
                end = await _wait(services, watch, ended)
            else:
                end = await _join(services, ticket, ended)
    return await _answer(services, ticket, end if isinstance(end, V1End) else None)


async def submit_only(services: ApiServices, request: RolloutRequest, owner: str) -> Response:
    """Submits one rollout, as `run` does, and returns its `V1Ticket` as JSON with status 202."""
    ticket = await _submit(services, request, _plan(services, request, owner))
    return Response(orjson.dumps(ticket), status_code=202, media_type=TICKET_TYPE)


async def wait_for_end(services: ApiServices, ticket: V1Ticket) -> None:
    """Waits until a rollout that `submit_only` submitted has ended, or should have; its result is not read."""

    async def ended() -> bool | None:
        status = await services.store.batches.status(ticket.batch_id, None)
        return True if status is None or status.state is BatchState.COMPLETE else None

    await _join(services, ticket, ended)


async def answer_ticket(services: ApiServices, ticket: V1Ticket) -> Response:
    """Makes the answer for a rollout whose end was waited for."""
    return await _answer(services, ticket, await services.store.rollouts.v1_end(keys.uid_of(ticket.batch_id, 0)))


def _plan(services: ApiServices, request: RolloutRequest, owner: str) -> NewBatch:
    settings = services.settings
    return plan_v1(
        request,
        owner=owner,
        deadline_s=settings.rollout_timeout_seconds,
        calls_tool_servers=settings.v1_tool_servers,
    )


async def _submit(services: ApiServices, request: RolloutRequest, new: NewBatch) -> V1Ticket:
    try:
        batch_id, created = await services.submit(new)
    except IdempotencyKeyReused:
        raise Conflict(
            f"rollout_id {request.rollout_id!r} belongs to another rollout: it was posted with a different body, "
            "and runs or ended less than 10 minutes ago. Use a new rollout_id, or repeat the first body to join"
        ) from None
    _log.info("v1 rollout", joined=not created, rollout_id=request.rollout_id, batch_id=batch_id)
    return V1Ticket(request.rollout_id, batch_id, request.tokenizer_name)


async def _answer(services: ApiServices, ticket: V1Ticket, end: V1End | None) -> Response:
    timeout_s = services.settings.rollout_timeout_seconds
    # The reconciler should have ended the rollout by now. Protocol v1's caller gets an answer nevertheless.
    if end is None:
        why = "Rollout was deleted"
        if not await services.store.batches.is_deleted(ticket.batch_id):
            why = f"Rollout timeout exceeded ({timeout_s}s)"
            _log.error(
                "v1 rollout has no result after its deadline", rollout_id=ticket.rollout_id, batch_id=ticket.batch_id
            )
        answer = RolloutResponse(rollout_id=ticket.rollout_id, status=V1Status.ERROR, error_message=why)
    elif end.answer is not None:
        return Response(end.answer, media_type="application/json")
    else:
        result = await off_loop(len(end.result), lambda: V1Result.model_validate_json(end.result))
        answer = to_v1(result, tokenizer_name=ticket.tokenizer_name, timeout_seconds=timeout_s)
    return Response(answer.model_dump_json(), media_type="application/json")


async def _join(services: ApiServices, ticket: V1Ticket, look: Callable[[], Awaitable[T | None]]) -> T | None:
    """Does as `_wait` for a rollout that is not watched yet, and may have ended."""
    # Watched before the first look: otherwise an end that comes between look and wait would not wake us.
    async with services.store.signals.watch(ticket.batch_id) as watch:
        watch.wake()
        return await _wait(services, watch, look)


async def _wait(services: ApiServices, watch: Watch, look: Callable[[], Awaitable[T | None]]) -> T | None:
    """Waits until a look at the rollout finds something; None if it finds nothing until after the deadline."""
    end = time.monotonic() + services.settings.rollout_timeout_seconds + GRACE_SECONDS
    while True:
        await services.wait(watch, end - time.monotonic())
        try:
            found = await look()
        except StoreUnavailable:
            # The rollout survives a restart of Redis, and v1's callers do not retry, so the wait goes on too.
            if time.monotonic() >= end:
                raise
            await services.pause(RETRY_SECONDS)
            watch.wake()
            continue
        if found is not None or time.monotonic() >= end:
            return found
