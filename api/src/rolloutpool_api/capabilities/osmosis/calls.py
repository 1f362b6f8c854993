"""The Osmosis wire v3.3: a rollout is accepted at once, and its result is polled under a lease.

1. `OsmosisWire.accept` submits the rollout under its rollout_id, with a lease whose token goes to the caller alone.
   Both are durable before the answer. The same id again is a 409 until 15 minutes after the rollout's end.
2. `poll` renews the lease, and answers at the next change of the status, or after 30 s. A controller polls until the
   end.
3. Nobody polls for 120 s: the reconciler ends the rollout.

Everything is in Redis, so the next poll may go to another API process, or to this one after a restart. Ids of different
API keys are apart: nobody polls or cancels what somebody else has submitted, whatever id, token or prefix they name.
"""

import asyncio
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any, ClassVar

import orjson
import structlog
from fastapi import Response
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from rolloutpool_api.access import Principal
from rolloutpool_api.body import off_loop
from rolloutpool_api.errors import Conflict, Forbidden, KeyRequired, ResourceUnknown
from rolloutpool_api.other_wire import OtherWire
from rolloutpool_api.restrictions import Restrictions
from rolloutpool_api.services import ApiServices
from rolloutpool_api.submission import batch_of_one
from rolloutpool_common.capabilities.osmosis.leases import LeaseLook, LeaseOutcome, PollingLeases, new_lease
from rolloutpool_common.capabilities.osmosis.request import (
    MARKS,
    OPTIONS_KEY,
    OsmosisCancel,
    OsmosisRequest,
    Wire,
    wire_of,
)
from rolloutpool_common.capabilities.osmosis.response import (
    LABEL,
    LEASE_SECONDS,
    UNGRADED,
    WAIT_SECONDS,
    OsmosisAccepted,
    OsmosisCancelled,
    OsmosisHealth,
    OsmosisLifecycle,
    OsmosisRecord,
    running_result,
    to_osmosis,
)
from rolloutpool_common.capabilities.osmosis.stored import NewLease, StoredOsmosis
from rolloutpool_common.composition import OsmosisOptionsFields, asks_of
from rolloutpool_common.outcomes import RolloutStatus
from rolloutpool_common.protocol.offers import missing, needs_of, shown
from rolloutpool_common.security.api_keys import GUEST, KeyScope
from rolloutpool_common.store import NewBatch, StoreError, StoreUnavailable, keys
from rolloutpool_common.store.announcements import offer_of

_log = structlog.stdlib.get_logger(__name__)

RETRY_SECONDS = 1.0
LONGEST_DEADLINE = 604_800.0
"""Seconds; the batch API refuses a longer one."""
HEALTH_SECONDS = 2.0
"""For Redis, when a controller asks for its health: the SDK's client waits 5 s for the whole answer."""
_DISPOSITIONS = {
    RolloutStatus.QUEUED: "cancelled_queued",
    RolloutStatus.RUNNING: "cancelled_running",
    RolloutStatus.GRADING: "cancelled_running",
}
_REFUSALS = {
    Wire.AMBIGUOUS: (
        "the body has `chat_completions_url` (the Osmosis wire v3.3) and `server_url` (protocol v1); leave one out, "
        "because the two are answered differently"
    ),
    Wire.CALLBACKS: (
        "the Osmosis wire with callbacks (SDKs up to 0.3.1) is not spoken here; poll for the result, as SDKs from "
        "0.3.3 on do"
    ),
}


class OsmosisWire(OtherWire):
    """The part of this wire on protocol v1's paths."""

    marks = MARKS
    answers: ClassVar[dict[int | str, dict[str, Any]]] = {
        202: {"model": OsmosisAccepted, "description": "Accepted: the body is of the Osmosis wire v3.3"}
    }
    health_model = OsmosisHealth

    def takes(self, document: Any) -> bool:
        """Tells by the body's fields."""
        return wire_of(document) is not Wire.V1

    async def accept(self, services: ApiServices, document: Any, caller: Principal) -> Response:
        """Submits one rollout."""
        wire = wire_of(document)
        # Protocol v1's trainers need no key from near by, because they have none. This wire's controllers can have one,
        # and without it nobody could tell apart who may poll and cancel.
        if caller.name == GUEST and services.keys.required:
            raise KeyRequired
        caller.must(KeyScope.SUBMIT)
        if wire in _REFUSALS:
            raise RequestValidationError([_fault(_REFUSALS[wire], "body")])
        try:
            request = OsmosisRequest.model_validate(document)
        except ValidationError as error:
            found = error.errors(include_url=False, include_context=False)
            # What a fault of the whole body quotes is the body, with the key in it.
            quoted = [{} if fault["input"] is document else fault["input"] for fault in found]
            raise RequestValidationError(
                [
                    {**fault, "loc": ("body", *fault["loc"]), "input": given}
                    for fault, given in zip(found, quoted, strict=True)
                ]
            ) from None
        if faults := list(_faults(request, services.restrictions)):
            raise RequestValidationError([_fault(text, "body", field) for field, text in faults])
        token, lease = new_lease(LEASE_SECONDS)
        try:
            new = _plan(request, owner=caller.name, lease=lease)
        except TypeError:
            raise RequestValidationError(
                [_fault("holds an integer beyond 64 bits; send it as a string", "body")]
            ) from None
        if lacking := await _lacking(services, new):
            raise RequestValidationError([_fault(f"no live worker has {lacking}", "body", "metadata", OPTIONS_KEY)])
        services.raise_if_stopping()
        batch_id, _ = await services.submit(new)
        # A submit that the store had to repeat finds its own first try, which is no duplicate.
        if batch_id != new.batch_id:
            raise Conflict("rollout_id is already registered")
        _log.info("osmosis rollout", rollout_id=request.rollout_id, batch_id=batch_id)
        answer = OsmosisAccepted(rollout_id=request.rollout_id, polling_lease_token=token)
        return Response(answer.model_dump_json(), status_code=202, media_type="application/json")

    async def health(self, services: ApiServices, owner: str) -> OsmosisHealth | None:
        """Says what a controller's rollouts do; None where this process has never known it, because Redis is away.

        While it is away, nothing is accepted, and what was active counts as active: a controller that waits until its
        rollouts have ended goes on waiting.
        """
        accepting, active = False, 1
        with suppress(StoreError, TimeoutError):
            async with asyncio.timeout(HEALTH_SECONDS):
                services.data_name, active = await PollingLeases(services.store).active(owner)
            accepting = not services.stopping
        if services.data_name is None:
            return None
        lifecycle = OsmosisLifecycle(accepting_rollouts=accepting, active_rollouts=active)
        return OsmosisHealth(instance_id=services.data_name, process_id=services.data_name, lifecycle=lifecycle)


async def poll(services: ApiServices, rollout_id: str, token: str, owner: str) -> Response:
    """Answers with the result, or with the status once it changes, or after `WAIT_SECONDS`."""
    look = await _look(services, owner, rollout_id, token)
    # A claim may have come before the first poll. A controller that is not told at once would wait for the next change.
    if look.status is look.told and not look.status.terminal:
        look = await _next_look(services, owner, rollout_id, token, look)
    if not look.status.terminal:
        answer = running_result(rollout_id, look.status)
    else:
        data = await services.store.rollouts.result(keys.uid_of(look.batch_id, 0))
        # Its data was deleted between the two looks.
        if data is None:
            raise ResourceUnknown("unknown rollout_id")
        answer = await off_loop(len(data), lambda: to_osmosis(OsmosisRecord.model_validate_json(data)))
    return Response(answer.model_dump_json(), media_type="application/json")


async def cancel(services: ApiServices, request: OsmosisCancel, owner: str) -> OsmosisCancelled:
    """Cancels rollouts of this owner; asking twice is harmless."""
    if request.selectors != 1:
        raise RequestValidationError([_fault("pass exactly one selector: ids, prefix, or all", "body")])
    leases = PollingLeases(services.store)
    if request.ids is not None:
        names = list(dict.fromkeys(request.ids))
        live = await leases.live(owner, names)
    else:
        live = await leases.live(owner)
        names = [name for name in live if name.startswith(request.prefix or "")]
    before = await leases.cancel([live[name] for name in names if name in live])
    return OsmosisCancelled(
        dispositions={
            name: _DISPOSITIONS[before[live[name]]] if live.get(name) in before else "not_found" for name in names
        }
    )


async def _look(services: ApiServices, owner: str, rollout_id: str, token: str) -> LeaseLook:
    look = await PollingLeases(services.store).look(owner, _key(rollout_id), token)
    if look.outcome is LeaseOutcome.UNKNOWN:
        raise ResourceUnknown("unknown rollout_id")
    if look.outcome is LeaseOutcome.REFUSED:
        raise Forbidden("invalid polling lease")
    return look


async def _next_look(services: ApiServices, owner: str, rollout_id: str, token: str, before: LeaseLook) -> LeaseLook:
    """Waits until the status is another one than a look has found, `WAIT_SECONDS` at most."""
    end = time.monotonic() + WAIT_SECONDS
    async with services.store.signals.watch(before.batch_id) as watch:
        # It may have changed between the look and the watch.
        watch.wake()
        while await services.wait(watch, end - time.monotonic()):
            try:
                look = await _look(services, owner, rollout_id, token)
            except StoreUnavailable:
                # The lease was renewed before, so a poll outlasts a restart of Redis.
                if time.monotonic() >= end:
                    raise
                await services.pause(RETRY_SECONDS)
                watch.wake()
                continue
            if look.status is not before.status:
                return look
    return before


def _faults(request: OsmosisRequest, restrictions: Restrictions) -> Iterator[tuple[str, str]]:
    """Yields field and fault of what a request breaks."""
    if fault := restrictions.refuse_url(request.chat_completions_url):
        yield "chat_completions_url", fault
    if fault := restrictions.refuse_key(request.llm_api_key):
        yield "llm_api_key", fault
    if fault := restrictions.refuse_messages(request.initial_messages):
        yield "initial_messages", fault


async def _lacking(services: ApiServices, new: NewBatch) -> str:
    """Says what the rollout names and no live worker has; nothing while no worker is alive, as for batches."""
    # A plain rollout names nothing, so most submits read no workers.
    if not (needs := needs_of(orjson.loads(new.rollouts[0].overrides))):
        return ""
    live = [worker for worker in await services.store.workers.known() if worker.alive]
    return shown(missing(needs, map(offer_of, live))) if live else ""


def _fault(text: str, *at: str) -> dict[str, Any]:
    return {"type": "value_error", "loc": at, "msg": f"Value error, {text}", "input": {}}


def _plan(request: OsmosisRequest, *, owner: str, lease: NewLease) -> NewBatch:
    """Makes a batch of one from the Osmosis wire's request."""
    labels = {} if request.label is None else {LABEL: request.label}
    spec = {
        "rollout_id": request.rollout_id,
        "server_url": request.chat_completions_url,
        "messages": [message.wire() for message in request.initial_messages],
        "metadata": request.metadata or {},
        "callback_api_key": request.llm_api_key,
        "labels": labels if request.grade else {**labels, UNGRADED: "false"},
        "sampling_params": {},
        "messages_only": True,
        # No ids, so no tokenizer, and nothing to train.
        "tokenizer_name": "",
        "allow_untrained": True,
        # The wire says nothing of a turn that is asked twice, and OpenAI's own client repeats calls as well.
        "idempotent": True,
        **request.options.model_dump(mode="json", exclude=set(OsmosisOptionsFields.model_fields)),
        **request.rewarded(),
    }
    timeout_s = request.agent_timeout_sec
    # A time that has passed already is a deadline too.
    deadline_s = None if timeout_s is None else min(max(timeout_s, 0.001), LONGEST_DEADLINE)
    new = batch_of_one(spec, owner=owner, key=_key(request.rollout_id), deadline_s=deadline_s)
    return replace(new, asks={**asks_of(None, [spec]), StoredOsmosis.name: lease})


def _key(rollout_id: str) -> str:
    """Makes the key under which the store remembers a rollout of the Osmosis wire."""
    return f"osmosis/{rollout_id}"
