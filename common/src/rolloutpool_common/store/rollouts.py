"""Rollouts: claimed by one worker at a time, journaled, ended once.

How a rollout stays with one worker, although workers, networks and Redis fail (claim and fence):

1. A worker makes a random token and claims the rollout with it (`claim.lua`). The claim stores the token, and counts an
   attempt. Every other worker that gets a ticket of the rollout is refused with `taken`.
2. Each later write (journal, finish, release) carries the token. The script compares it with the stored one first: this
   comparison is the fence. If they differ, the script changes nothing, and the worker stops with `ClaimLost`.
3. If the worker dies, the reconciler removes the token and queues the rollout again. The next claim stores another
   token. So a worker that was only declared dead, and lives, can no longer write anything.
4. If Redis was restarted and lost its last second, it may have forgotten a claim. Then the worker's next write is
   refused, and the worker asks for its claim back (`restore.lua`). It gets it, with its attempt's number and the whole
   journal, unless the rollout has ended or a later attempt was made.
5. The end removes token and journal and stores the result. A terminal status never changes.

Example: worker A claims with token 11. A is paused for a minute, and is declared dead. B claims with token 22. A wakes
up and writes turn 3 with token 11: refused, because Redis has 22.
"""

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import orjson

from rolloutpool_common.errors import WorkerFault
from rolloutpool_common.outcomes import FinishReason, RolloutEnd, RolloutStatus
from rolloutpool_common.protocol.journal import JournalRecord, parse_record
from rolloutpool_common.protocol.result import RolloutResult, encode_result
from rolloutpool_common.protocol.rollouts import RolloutView
from rolloutpool_common.protocol.workers import WorkerRole
from rolloutpool_common.store import keys
from rolloutpool_common.store.answers import named
from rolloutpool_common.store.claims import Claim, ClaimRefused, read_claim
from rolloutpool_common.store.connection import Connection
from rolloutpool_common.store.errors import ClaimLost, StoreError, store_errors
from rolloutpool_common.store.outside_ends import OpenRollout, outside_result
from rolloutpool_common.store.pool_waits import PoolWaits
from rolloutpool_common.store.records import (
    compress,
    expand,
    finish_fields,
    journal_text,
    journal_texts,
    merge_fields,
    read_end,
)
from rolloutpool_common.store.rows import row_of
from rolloutpool_common.store.store_call import StoreCall
from rolloutpool_common.store.v1_answers import V1End
from rolloutpool_common.store.waits import is_queued, run_wait, status_of

PRECANCEL_SECONDS = 600
"""How long a cancel that came before its submit is remembered."""
MAX_LOSSES = 8
"""How often a rollout may leave a worker without a result, a failure or a reason to go on elsewhere."""
MAX_PRECANCELS = 100_000
"""How many such cancels are remembered; beyond that, the oldest are forgotten."""


@dataclass(frozen=True, slots=True)
class _GivenBack:
    """Says how a rollout comes back to the queue; the header of `release.lua` says more."""

    role: WorkerRole
    """Of the worker that had it."""
    clean: bool
    """Whether no model call is unanswered."""
    counter: str = ""
    """What counts this; nothing, where it is empty."""
    delay_s: float = 0.0
    """Until it may run again."""
    why: str = ""
    """In words, for its history."""
    tried: int = 0
    """How many calls of its turn had failed in a row."""


def new_token() -> str:
    """Makes the token of one claim: 64 random bits in hex."""
    return secrets.token_hex(8)


class Rollouts:
    """The rollouts in one store."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._redis = connection.redis
        self._pool = PoolWaits(connection)
        self.accepted_at = time.perf_counter()
        """When Redis last accepted a record or a result of a rollout, on the clock `time.perf_counter`."""

    async def claim(
        self,
        uid: str,
        worker_id: str,
        role: WorkerRole = WorkerRole.SHARED,
        *,
        token: str | None = None,
        trainer: str = "",
    ) -> Claim | ClaimRefused:
        """Makes this worker the only one that may run the rollout."""
        split = keys.split_uid(uid)
        if split is None:
            return ClaimRefused.GONE
        batch_id, index = split
        token = token or new_token()
        claim = named(await self._connection.of_batch("claim", batch_id, index, worker_id, role, token, trainer))
        if claim["outcome"] != b"claimed":
            return ClaimRefused(claim["outcome"].decode())
        return read_claim(claim, uid, worker_id, role, token)

    async def journal(
        self, claim: Claim, records: Sequence[JournalRecord], *, turns: int, note: bytes = b"", two: bool = False
    ) -> Any:
        """Makes the last record durable, and sends the earlier ones again that Redis has lost.

        With `two` the record before it was not sent yet, and travels in front of it. What a capability notes is durable
        with the last record, or neither is. Returns its answer (`on_record`), if any.
        """
        # Nearly always one call, for the last record. After a gap the loop goes back to the first one that Redis lost.
        # As it is now: records that follow meanwhile are sent by the calls that are made for them.
        records = tuple(records)
        last, waits, idle = len(records) - 1, claim.waits, self._connection.idle
        index, noted = last, []
        if two:
            # Both leave in one tick, so they are one call of Redis. Should only the last one arrive, it finds a gap,
            # and this one is sent again.
            text = await journal_text(records[last - 1])
            first = self._connection.joined("journal", claim.uid, claim.token, last - 1, turns, b"", text)
            first.add_done_callback(StoreCall.forget)
        while index < len(records):
            text = await journal_text(records[index])
            added = note if index == last else b""
            before = idle.seconds
            call = self._connection.joined("journal", claim.uid, claim.token, index, turns, added, text)
            try:
                outcome, length, *noted = await call
            except StoreError:
                waits.redis += time.perf_counter() - call.begun
                raise
            now = time.perf_counter()
            took = now - call.begun
            # Where its connection broke, nothing was idle in the eyes of a line.
            redis = took if call.tries else min(idle.seconds - before, took)
            waits.redis += redis
            waits.worker += took - redis
            if outcome == b"fenced":
                if not await self.restore(claim, records, turns=turns):
                    raise ClaimLost(f"rollout {claim.uid}, attempt {claim.attempt}: {ClaimLost.__doc__}")
                # Restored with all records. The script finds this one there, and answers `ok`.
                continue
            index = length if outcome == b"gap" else index + 1
            self.accepted_at = now
        return noted[0] if noted else None

    async def restore(self, claim: Claim, records: Sequence[JournalRecord] | None, *, turns: int) -> bool:
        """Makes a claim again that Redis has forgotten; does nothing where Redis has it."""
        answer = await self._connection.script(
            "restore",
            claim.batch_id,
            claim.index,
            claim.worker_id,
            claim.token,
            claim.attempt,
            int(records is not None),
            turns,
            *await journal_texts(records or ()),
        )
        return bool(answer)

    async def read_journal(self, uid: str) -> list[JournalRecord]:
        """Reads the journal of a rollout that has not ended; raises `JournalUnreadable`."""
        with store_errors():
            stored = await self._redis.lrange(keys.rollout(uid, "journal"), 0, -1)
        return [parse_record(expand(record)) for record in stored]

    async def finish(self, claim: Claim, result: RolloutResult, *, attachments: bytes = b"") -> None:
        """Ends a claimed rollout with its result."""
        place, v1 = (claim.batch_id, claim.index, claim.token, result), claim.spec.v1
        answer = await self._end(*place, v1=v1, attachments=attachments)
        # No records are sent along: the result takes the journal's place at once.
        if answer == "fenced" and await self.restore(claim, [], turns=result.num_llm_calls):
            answer = await self._end(*place, v1=v1, attachments=attachments)
        # The status stands for a second arrival of this call, which finds that the first one has ended the rollout.
        if answer not in ("ok", result.status.value):
            raise ClaimLost(f"rollout {claim.uid}, attempt {claim.attempt}: {ClaimLost.__doc__}")
        self.accepted_at = time.perf_counter()

    async def settle(self, batch_id: str, index: int, end: RolloutEnd) -> str:
        """Ends a rollout with a result that has no samples; a worker that runs it is told to stop."""
        result = await outside_result(self._connection, self._pool, (batch_id, index), end)
        if isinstance(result, str):
            return result
        # The rollout may have ended since the read above. The script looks again, and then changes nothing.
        return await self._end(batch_id, index, "", result)

    async def _end(
        self,
        batch_id: str,
        index: int,
        token: str,
        result: RolloutResult,
        *,
        v1: bool = False,
        attachments: bytes = b"",
    ) -> str:
        # Protocol v1's batch of one needs no table.
        answer = await self._connection.of_batch(
            "finish",
            batch_id,
            index,
            token,
            result.status,
            attachments,
            *await finish_fields(result, None if v1 else row_of),
        )
        return str(answer.decode())

    async def cancel(self, uid: str) -> RolloutStatus | None:
        """Cancels a rollout, or tells capabilities of one that has ended; returns its status, None if unknown."""
        split = keys.split_uid(uid)
        answer = "gone" if split is None else await self.cancel_at(*split)
        if answer == "gone":
            return None
        return RolloutStatus.CANCELLED if answer == "ok" else RolloutStatus(answer)

    async def cancel_at(self, batch_id: str, index: int) -> str:
        """Cancels a rollout like `cancel`, and returns what `settle` returns.

        Of a rollout that had ended otherwise, capabilities are told: its push is stopped, for example.
        """
        answer = await self.settle(batch_id, index, RolloutEnd(RolloutStatus.CANCELLED, FinishReason.CANCELLED))
        if answer not in ("ok", "gone", RolloutStatus.CANCELLED):
            await self._connection.of_batch("cancel", batch_id, index, "", "")
        return answer

    async def precancel(self, rollout_id: str, owner: str) -> str | None:
        """Cancels a rollout that has not been submitted yet, if its submit comes within `PRECANCEL_SECONDS`."""
        uid = await self._connection.script(
            "precancel", owner, rollout_id, int(PRECANCEL_SECONDS * 1000), MAX_PRECANCELS
        )
        return uid.decode() or None

    async def release(self, claim: Claim, *, clean: bool, tried: int = 0) -> bool:
        """Gives a claimed rollout back to the queue at once, uncounted; its journal stays."""
        return await self._requeue(claim.uid, claim.token, _GivenBack(claim.role, clean, tried=tried)) >= 0

    async def give_back(
        self,
        claim: Claim,
        *,
        clean: bool,
        counter: Literal["retries", "deferrals", "capacity", "grade_retries", "stale", "pauses", "weights"],
        delay_s: float,
        why: str = "",
    ) -> bool:
        """Gives a claimed rollout back to the queue after a failure; it is counted, and waits for `delay_s` seconds."""
        return await self._requeue(claim.uid, claim.token, _GivenBack(claim.role, clean, counter, delay_s, why)) >= 0

    async def abandon(
        self, uid: str, token: str, role: WorkerRole, *, clean: bool = False, delay_s: float = 0.0
    ) -> bool:
        """Queues a rollout again that its worker no longer runs, although Redis still lists the claim.

        This happens through a defect, or where the store refuses a write for good. So after `MAX_LOSSES` times the
        rollout fails: it would go on in circles for ever.
        """
        losses = await self._requeue(uid, token, _GivenBack(role, clean, "losses", delay_s))
        split = keys.split_uid(uid)
        if split is not None and losses >= MAX_LOSSES:
            lost = WorkerFault(f"{losses} attempts ended without a result or a failure; the workers' logs say why")
            await self.settle(*split, RolloutEnd.failed(lost.failure(None)))
        return losses >= 0

    async def _requeue(self, uid: str, token: str, back: _GivenBack) -> int:
        """Returns the new value of the counter, 0 without one; -1 where the rollout was not this worker's."""
        if (split := keys.split_uid(uid)) is None:
            return -1
        known = [int(back.clean), int(back.delay_s * 1000), back.role, back.why[:300], back.tried]
        return int(await self._connection.script("release", *split, token, "", back.counter, *known))

    async def keep_evidence(self, claim: Claim, result: RolloutResult) -> None:
        """Keeps a result that must not be delivered as data, for people to look into; it is deleted with its batch."""
        with store_errors():
            data = compress(encode_result(result))
            await self._connection.beside_batch(claim.batch_id, "SET", keys.rollout(claim.uid, "evidence"), data)

    async def evidence(self, uid: str) -> bytes | None:
        """Returns what was kept of a quarantined rollout, as JSON."""
        with store_errors():
            data = await self._redis.get(keys.rollout(uid, "evidence"))
        return None if data is None else expand(data)

    async def restart(self, claim: Claim) -> Claim:
        """Forgets the journal, so that the rollout starts from turn 1; raises `ClaimLost`."""
        if not await self._connection.script("restart", claim.uid, claim.token):
            raise ClaimLost(f"rollout {claim.uid}, attempt {claim.attempt}: {ClaimLost.__doc__}")
        return replace(claim, journal_length=0, clean=True)

    async def view(self, uid: str, owner: str | None) -> RolloutView | None:
        """Reads a rollout's state, and its result once it has ended."""
        if (split := keys.split_uid(uid)) is None:
            return None
        batch_id, index = split
        with store_errors():
            pipe = self._redis.pipeline(transaction=False)
            pipe.hmget(keys.batch(batch_id), "owner", "shared", "run")
            pipe.hget(keys.batch(batch_id, "items"), str(index))
            pipe.hmget(keys.rollout(uid), "status", "attempt", "worker", "turns", "waits", "stage")
            pipe.hget(keys.batch(batch_id, "groups"), str(index))
            pipe.get(keys.rollout(uid, "result"))
            # Last: were it read before the rest, a deletion could begin in between, and what ended would look fresh.
            pipe.hexists(keys.batch(batch_id), "deleting")
            (owned_by, shared, run), own, states, group, result, deleting = await pipe.execute()
        state, attempt, worker, turns, note, stage = states
        if owned_by is None or owner not in (None, owned_by.decode()) or own is None or deleting:
            return None
        waiting = None
        if result is None:
            fields = merge_fields(shared, own, uid=uid)
            found = await self._pool.look() if is_queued(state) else None
            rollout = OpenRollout(batch_id, index, fields, group, state, attempt, worker, note, stage)
            waiting = rollout.wait(found, await run_wait(self._connection, run))
        return RolloutView(
            uid=uid,
            rollout_id=orjson.loads(own).get("rollout_id", uid),
            batch_id=batch_id,
            index=index,
            group=group.decode() if group is not None else None,
            status=status_of(state, stage),
            attempt=int(attempt or 0),
            worker=worker.decode() if worker is not None else None,
            turns=int(turns or 0),
            waiting=waiting,
            result=orjson.loads(expand(result)) if result is not None else None,
        )

    async def result(self, uid: str) -> bytes | None:
        """Returns the result as JSON; None while the rollout has not ended."""
        # Waiters that wake in one moment ask together.
        data = await self._connection.command("GET", keys.rollout(uid, "result"))
        return None if data is None else expand(data)

    async def v1_end(self, uid: str) -> V1End | None:
        """Returns how a rollout of protocol v1 ended; None while it has not."""
        data = await self._connection.command("GET", keys.rollout(uid, "result"))
        return None if data is None else read_end(data)

    async def trunk(self, batch_id: str) -> bytes | None:
        """Reads the result, as JSON, of the rollout whose first turns those of a batch begin with; None without one."""
        with store_errors():
            data = await self._redis.hget(keys.batch(batch_id, "trunk"), "0")
        return None if data is None else expand(data)

    async def find(self, rollout_id: str, owner: str) -> str | None:
        """Finds a rollout by the name that its caller gave it."""
        with store_errors():
            uid = await self._redis.get(keys.name(owner, rollout_id))
        return None if uid is None else str(uid.decode())
