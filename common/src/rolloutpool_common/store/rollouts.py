"""Rollouts: claimed by one worker at a time, journaled, ended once.

Invariant: of all claims of a rollout only the one whose token stands in Redis can write; every other write changes
nothing and tells its caller so (`ClaimLost`). A terminal state is final. A Redis that lost its tail may have forgotten
a claim; its worker then gets it back (`restore`), unless another one has claimed the rollout since.
"""

import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import orjson

from rolloutpool_common.outcomes import Failure, FinishReason, RolloutStatus
from rolloutpool_common.protocol.journal import JournalRecord, encode_record, parse_record
from rolloutpool_common.protocol.result import RolloutResult, Spans
from rolloutpool_common.protocol.rollouts import RolloutView
from rolloutpool_common.protocol.workers import WorkerRole
from rolloutpool_common.store import keys
from rolloutpool_common.store.answers import named, now_ms
from rolloutpool_common.store.connection import Connection
from rolloutpool_common.store.errors import ClaimLost, store_errors
from rolloutpool_common.store.records import (
    Claim,
    ClaimRefused,
    compress,
    expand,
    merge_spec,
    result_counts,
)

__all__ = ["Rollouts", "new_token"]

PRECANCEL_SECONDS = 600
"""How long a cancel waits for its submit."""
MAX_PRECANCELS = 100_000
"""Cancels that wait at once; beyond that, the oldest go."""


def new_token() -> str:
    """The name of one claim, never given again."""
    return secrets.token_hex(8)


class Rollouts:
    """The rollouts in one store."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._redis = connection.redis

    async def claim(
        self, uid: str, worker_id: str, role: WorkerRole = WorkerRole.SHARED, *, token: str | None = None
    ) -> Claim | ClaimRefused:
        """Makes this worker the only one that may run the rollout, or says why the ticket is void.

        Who tries again after `StoreUnavailable` passes the same token, because the first try may have arrived.
        """
        split = keys.split_uid(uid)
        if split is None:
            return ClaimRefused.GONE
        batch_id, index = split
        token = token or new_token()
        claim = named(await self._connection.script("claim", batch_id, index, worker_id, role, token))
        if claim["outcome"] != b"claimed":
            return ClaimRefused(claim["outcome"].decode())
        now, deadline = int(claim["now_ms"]), claim["deadline_ms"]
        return Claim(
            uid=uid,
            batch_id=batch_id,
            index=index,
            worker_id=worker_id,
            role=role,
            token=token,
            attempt=claim["attempt"],
            crashes=claim["crashes"],
            retries=claim["retries"],
            deferrals=claim["deferrals"],
            journal_length=claim["journal_length"],
            clean=bool(claim["clean"]),
            group=claim["group"].decode() or None,
            deadline_in_s=(int(deadline) - now) / 1000 if deadline else None,
            queued_ms=float(now - int(claim["created_ms"])),
            spec=merge_spec(claim["shared"], claim["overrides"], uid=uid),
            more_waiting=bool(claim["more_waiting"]),
        )

    async def journal(self, claim: Claim, records: Sequence[JournalRecord], *, turns: int) -> None:
        """Makes the last of `records` (the whole journal so far) durable; resends what Redis has lost of the rest.

        Raises `ClaimLost` when the rollout is no longer this worker's.
        """
        index = len(records) - 1
        while index < len(records):
            record = compress(encode_record(records[index]))
            answer = named(await self._connection.script("journal", claim.uid, claim.token, index, turns, record))
            if answer["outcome"] == b"fenced":
                if not await self.restore(claim, records, turns=turns):
                    raise ClaimLost(f"rollout {claim.uid}, attempt {claim.attempt}: {ClaimLost.__doc__}")
                continue
            index = answer["length"] if answer["outcome"] == b"gap" else index + 1

    async def restore(self, claim: Claim, records: Sequence[JournalRecord] | None, *, turns: int) -> bool:
        """Whether the claim holds; one that Redis forgot is made again, with the whole journal `records`.

        `records` None: the worker has not read what earlier attempts left.
        """
        answer = await self._connection.script(
            "restore",
            claim.batch_id,
            claim.index,
            claim.worker_id,
            claim.token,
            claim.attempt,
            int(records is not None),
            turns,
            *(compress(encode_record(record)) for record in records or ()),
        )
        return bool(answer)

    async def read_journal(self, uid: str) -> list[JournalRecord]:
        """All records of a rollout that has not ended; raises `JournalUnreadable` for one that is not ours."""
        with store_errors():
            stored = await self._redis.lrange(keys.rollout(uid, "journal"), 0, -1)
        return [parse_record(expand(record)) for record in stored]

    async def finish(self, claim: Claim, result: RolloutResult) -> None:
        """Ends a claimed rollout with its result; raises `ClaimLost` when it is no longer this worker's."""
        answer = await self._end(claim.batch_id, claim.index, claim.token, result)
        if answer == "fenced" and await self.restore(claim, [], turns=result.num_llm_calls):
            answer = await self._end(claim.batch_id, claim.index, claim.token, result)
        if answer not in ("ok", result.status.value):
            raise ClaimLost(f"rollout {claim.uid}, attempt {claim.attempt}: {ClaimLost.__doc__}")

    async def settle(
        self,
        batch_id: str,
        index: int,
        status: RolloutStatus,
        reason: FinishReason,
        failure: Failure | None,
    ) -> str:
        """Ends a rollout from outside, whoever runs it, with a result that has no samples.

        Returns "ok", "gone", or the terminal status that it had already.
        """
        uid = keys.uid_of(batch_id, index)
        with store_errors():
            pipe = self._redis.pipeline(transaction=False)
            pipe.hmget(keys.batch(batch_id), "shared")
            pipe.hget(keys.batch(batch_id, "items"), str(index))
            pipe.hmget(keys.rollout(uid), "status", "attempt", "worker")
            pipe.hget(keys.batch(batch_id, "groups"), str(index))
            (shared,), overrides, (state, attempt, worker), group = await pipe.execute()
        if shared is None or overrides is None:
            return "gone"
        if state is not None and RolloutStatus(state.decode()).terminal:
            return str(state.decode())
        spec = merge_spec(shared, overrides, uid=uid)
        result = RolloutResult(
            uid=uid,
            rollout_id=spec.rollout_id,
            batch_id=batch_id,
            index=index,
            group=group.decode() if group is not None else None,
            labels=spec.labels,
            metadata=spec.metadata,
            status=status,
            finish_reason=reason,
            failure=failure,
            attempt=int(attempt or 0),
            worker=worker.decode() if worker is not None else None,
            spans=Spans(),
        )
        return await self._end(batch_id, index, "", result)

    async def _end(self, batch_id: str, index: int, token: str, result: RolloutResult) -> str:
        answer = await self._connection.script(
            "finish",
            batch_id,
            index,
            token,
            result.status,
            compress(result.model_dump_json().encode()),
            *result_counts(result),
        )
        return str(answer.decode())

    async def cancel(self, uid: str) -> RolloutStatus | None:
        """Cancels it if it has not ended, else its delivery; returns its state afterwards, None where there is none."""
        split = keys.split_uid(uid)
        answer = "gone" if split is None else await self.cancel_at(*split)
        if answer == "gone":
            return None
        return RolloutStatus.CANCELLED if answer == "ok" else RolloutStatus(answer)

    async def cancel_at(self, batch_id: str, index: int) -> str:
        """As `cancel`; returns as `settle` does.

        That it was cancelled is delivered all the same, however often it is.
        """
        answer = await self.settle(batch_id, index, RolloutStatus.CANCELLED, FinishReason.CANCELLED, None)
        if answer not in ("ok", "gone", RolloutStatus.CANCELLED):
            await self._connection.script("settle_push", batch_id, keys.uid_of(batch_id, index), "stopped", 0)
        return answer

    async def precancel(self, rollout_id: str, owner: str) -> str | None:
        """Cancels a rollout that nobody has submitted yet, should it come within `PRECANCEL_SECONDS`.

        Returns the uid of one that was submitted after all; that one is not cancelled.
        """
        uid = await self._connection.script(
            "precancel", owner, rollout_id, int(PRECANCEL_SECONDS * 1000), MAX_PRECANCELS
        )
        return uid.decode() or None

    async def release(self, claim: Claim, *, clean: bool) -> bool:
        """Gives a claimed rollout back to the queue at once, uncounted; its journal stays.

        Args:
            claim: The claim to give up.
            clean: Whether no model call of it can be in flight.

        Returns:
            Whether the rollout was still this worker's.
        """
        return await self._requeue(claim.uid, claim.token, "", clean, 0.0, claim.role)

    async def give_back(
        self, claim: Claim, *, clean: bool, counter: Literal["retries", "deferrals"], delay_s: float
    ) -> bool:
        """Gives a claimed rollout back to the queue after a failure; it is counted, and waits for `delay_s` seconds.

        Args:
            claim: The claim to give up.
            clean: Whether no model call of it can be in flight.
            counter: `retries` after an infra failure, `deferrals` because its trainer's port is down.
            delay_s: Seconds until it may run again.

        Returns:
            Whether the rollout was still this worker's.
        """
        return await self._requeue(claim.uid, claim.token, counter, clean, delay_s, claim.role)

    async def abandon(self, uid: str, token: str, role: WorkerRole) -> None:
        """Queues a rollout again that has ended here, where Redis has forgotten the end and still lists the claim."""
        await self._requeue(uid, token, "losses", False, 0.0, role)

    async def _requeue(self, uid: str, token: str, counter: str, clean: bool, delay_s: float, role: WorkerRole) -> bool:
        split = keys.split_uid(uid)
        if split is None:
            return False
        answer = await self._connection.script(
            "release", *split, token, "", counter, int(clean), int(delay_s * 1000), role
        )
        return bool(answer >= 0)

    async def postpone(self, uid: str, seconds: float) -> None:
        """Lets a rollout that may only run alone be tried again soon, where no process for it can be started now."""
        with store_errors():
            at = await now_ms(self._redis) + seconds * 1000
            await self._redis.zadd(keys.DELAYED, {uid: int(at)}, xx=True)

    async def first_suspect(self) -> str | None:
        """The rollout that has waited longest to run alone."""
        with store_errors():
            first = await self._redis.zrange(keys.SUSPECTS, 0, 0)
            return first[0].decode() if first else None

    async def keep_evidence(self, claim: Claim, result: RolloutResult) -> None:
        """Keeps a result that must not be delivered as data, for people; it goes with its batch."""
        with store_errors():
            await self._redis.set(keys.rollout(claim.uid, "evidence"), compress(result.model_dump_json().encode()))

    async def evidence(self, uid: str) -> bytes | None:
        """What was kept of a quarantined rollout, as JSON."""
        with store_errors():
            data = await self._redis.get(keys.rollout(uid, "evidence"))
        return None if data is None else expand(data)

    async def restart(self, claim: Claim) -> Claim:
        """Forgets what the rollout has done; raises `ClaimLost` when it is no longer this worker's."""
        if not await self._connection.script("restart", claim.uid, claim.token):
            raise ClaimLost(f"rollout {claim.uid}, attempt {claim.attempt}: {ClaimLost.__doc__}")
        return replace(claim, journal_length=0, clean=True)

    async def view(self, uid: str, owner: str | None) -> RolloutView | None:
        """Its state, with the result once it has ended; None where this owner (None: of anybody) has no such one."""
        split = keys.split_uid(uid)
        if split is None:
            return None
        batch_id, index = split
        with store_errors():
            pipe = self._redis.pipeline(transaction=False)
            pipe.hmget(keys.batch(batch_id), "owner", "shared")
            pipe.hget(keys.batch(batch_id, "items"), str(index))
            pipe.hmget(keys.rollout(uid), "status", "attempt", "worker", "turns")
            pipe.hget(keys.batch(batch_id, "groups"), str(index))
            pipe.get(keys.rollout(uid, "result"))
            (owned_by, _), overrides, (state, attempt, worker, turns), group, result = await pipe.execute()
        if owned_by is None or owner not in (None, owned_by.decode()) or overrides is None:
            return None
        return RolloutView(
            uid=uid,
            rollout_id=orjson.loads(overrides).get("rollout_id", uid),
            batch_id=batch_id,
            index=index,
            group=group.decode() if group is not None else None,
            status=RolloutStatus(state.decode()) if state is not None else RolloutStatus.QUEUED,
            attempt=int(attempt or 0),
            worker=worker.decode() if worker is not None else None,
            turns=int(turns or 0),
            result=orjson.loads(expand(result)) if result is not None else None,
        )

    async def result(self, uid: str) -> bytes | None:
        """The result record as JSON; None while it has not ended."""
        with store_errors():
            data = await self._redis.get(keys.rollout(uid, "result"))
        return None if data is None else expand(data)

    async def find(self, rollout_id: str, owner: str) -> str | None:
        """The uid of the rollout that its caller named so."""
        with store_errors():
            uid = await self._redis.get(keys.name(owner, rollout_id))
        return None if uid is None else str(uid.decode())
