"""Batches: submitted whole, read by cursor, cancelled, deleted.

1. `submit` stages the rollouts (`staging.py`). A few small ones go with the commit instead.
2. It commits them in one script (`commit.lua`): from then on the batch exists, with all of its rollouts. Where Redis
   has lost some of what was staged, because it was started again meanwhile, both steps are made again.
3. Readers follow the batch's done-stream with a cursor, in the order in which rollouts end.
4. Some time after its last rollout has ended, the batch is deleted with everything of its rollouts.

Invariant: at every moment `total` = queued + running + grading + ended: only scripts move rollouts between states.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import orjson

from rolloutpool_common.composition import CAPABILITIES, asks_of
from rolloutpool_common.outcomes import FinishReason, RolloutEnd, RolloutStatus
from rolloutpool_common.protocol.batch import BatchStatus, CancelCause, Priority
from rolloutpool_common.protocol.groups import Group, GroupVerdict
from rolloutpool_common.protocol.ids import new_batch_id
from rolloutpool_common.store import keys
from rolloutpool_common.store.answers import named
from rolloutpool_common.store.batch_state import read_state
from rolloutpool_common.store.batch_tokenizers import tokenizers_field
from rolloutpool_common.store.cancellation import cancel_batch, interrupted
from rolloutpool_common.store.connection import Connection
from rolloutpool_common.store.deletion import delete_batch
from rolloutpool_common.store.errors import (
    BatchDeleted,
    IdempotencyKeyReused,
    NoRoom,
    OverQuota,
    RefusalCause,
    StoreError,
    StoreUnavailable,
    TooManyOpen,
    store_errors,
)
from rolloutpool_common.store.model_calls import promisers
from rolloutpool_common.store.needs import BatchNeeds
from rolloutpool_common.store.pool_waits import PoolWaits
from rolloutpool_common.store.records import (
    Capacity,
    EndedRollout,
    EndedSlice,
    NewBatch,
    NewRollout,
    ResultSlice,
    SubmitLimits,
    Submitted,
    expand,
)
from rolloutpool_common.store.rollouts import Rollouts
from rolloutpool_common.store.secrets import SecretStore
from rolloutpool_common.store.staging import DIRECT_ROLLOUTS, size_of, stage
from rolloutpool_common.store.usage import usage_of

RETENTION_SECONDS = 24 * 3600.0
"""From the end of a batch's last rollout to its deletion."""
STAGINGS = 5
"""How often a batch is staged. A Redis that loses it each time evicts keys, and those with a time to live first."""
_LOSES = (
    f"Redis lost {STAGINGS} times what was staged of a batch. If it evicts keys, set `maxmemory-policy noeviction`; "
    "else its log says why it starts again and again"
)
_ENDED = tuple(status for status in RolloutStatus if status.terminal)


class Batches:
    """The batches in one store."""

    def __init__(self, connection: Connection, rollouts: Rollouts, secrets: SecretStore) -> None:
        self._connection = connection
        self._redis = connection.redis
        self._pool = PoolWaits(connection)
        self._rollouts = rollouts
        self._secrets = secrets

    async def submit(
        self, new: NewBatch, limits: SubmitLimits | None = None, *, retention_s: float = RETENTION_SECONDS
    ) -> Submitted:
        """Stages the rollouts unless they are few and small, then commits them in one step."""
        idempotency = keys.idempotency(new.owner, new.idempotency_key) if new.idempotency_key else ""
        encrypted: dict[str, str] = {}
        shared = self._secrets.encrypt_field(new.shared, encrypted)
        needs = BatchNeeds.of(new)
        # It parses each rollout where several trainers have to promise: 0.12 s for 10,000 of 6 kB.
        promise = promisers(new) if len(new.rollouts) <= DIRECT_ROLLOUTS else await asyncio.to_thread(promisers, new)
        # Runs take turns, and each has a weight. The owner is part of the name, so that two owners who choose the same
        # one do not share a turn. A batch without a run takes turns by itself.
        run = keys.run_key(new.owner, new.run) if new.run is not None else new.batch_id
        limits = limits or SubmitLimits()
        quota = limits.quota
        fields = ["shared", shared, "retention_ms", int(retention_s * 1000), *needs.fields(), *promise]
        fields += self._fields(new)
        known = (
            new.batch_id,
            idempotency,
            new.digest,
            len(new.rollouts),
            new.priority,
            run,
            limits.max_open,
            new.owner,
            new.run or "",
            new.weight,
            size_of(new),
            new.attachment_bytes if new.attaches else 0,
            *("" if most is None else most for most in (quota.open, quota.bytes, quota.weight)),
            limits.new_bytes,
            limits.memory_bytes,
            limits.memory_limit_bytes,
        )
        for _ in range(STAGINGS):
            carried = await stage(self._redis, self._secrets, new, encrypted, needs.own)
            committed = named(await self._connection.script("commit", *known, len(carried), *carried, *fields))
            if committed["outcome"] != b"unstaged":
                break
        else:
            raise StoreUnavailable(_LOSES)
        if committed["outcome"] == b"refused":
            raise _refusal(committed, new)
        if committed["outcome"] == b"existing":
            return _same(committed["batch"].decode(), committed["digest"].decode(), new)
        # The batch is accepted. If the store fails here, the reconciler ends what was cancelled before it came.
        with suppress(StoreError):
            for index in committed["precancelled"]:
                await self._rollouts.cancel_at(new.batch_id, index)
        return Submitted(new.batch_id, created=True)

    def _fields(self, new: NewBatch) -> list[Any]:
        """Lists what the batch's hash has of the request; most of it only where the request says it."""
        fields: list[Any] = ["labels", orjson.dumps(new.labels), "tokenizers", tokenizers_field(new)]
        for capability in CAPABILITIES:
            if capability.mark and (asked := new.asks.get(capability.name)) is not None:
                fields += [part for pair in capability.kept(asked, self._secrets).items() for part in pair]
        if new.v1:
            fields += ["v1", 1]
        if new.attaches and new.attachment_bytes:
            fields += ["attachment_bytes", new.attachment_bytes]
        if new.weight != 1:
            fields += ["weight", new.weight]
        if new.lease_s is not None:
            fields += ["lease_ms", int(new.lease_s * 1000)]
        if new.group_policy is not None:
            fields += ["min_usable", new.group_policy.min_usable, "late", new.group_policy.late]
        return fields

    async def groups(self, batch_id: str) -> list[Group]:
        """Reads the state of each group of a batch with a group policy, in order of name; empty without a policy."""
        with store_errors():
            if not await self._redis.hexists(keys.batch(batch_id), "min_usable"):
                return []
            raw = await self._redis.hgetall(keys.batch(batch_id, "group_counts"))
        counts = {name.decode(): value.decode() for name, value in raw.items()}
        names = sorted(name.removeprefix("size:") for name in counts if name.startswith("size:"))

        def n(what: str, group: str) -> int:
            return int(counts.get(f"{what}:{group}", 0))

        return [
            Group(
                group=group,
                size=n("size", group),
                completed=n("completed", group),
                failed=n("failed", group),
                cancelled=n("cancelled", group),
                expired=n("expired", group),
                verdict=GroupVerdict(counts.get(f"verdict:{group}", GroupVerdict.OPEN)),
            )
            for group in names
        ]

    async def cancel_late(self) -> int:
        """Cancels the rest of each group that has its verdict and whose policy says so; returns how many rollouts."""
        with store_errors():
            due = await self._redis.smembers(keys.LATE)
        ended = 0
        for raw in due:
            batch_id, _, group = raw.decode().partition(" ")
            with store_errors():
                members = await self._redis.hgetall(keys.batch(batch_id, "groups"))
                verdict = await self._redis.hget(keys.batch(batch_id, "group_counts"), f"verdict:{group}")
            for index, name in members.items():
                if name.decode() != group or (verdict == b"usable" and await self._is_held(batch_id, int(index))):
                    continue
                answer = await self._rollouts.settle(
                    batch_id, int(index), RolloutEnd(RolloutStatus.CANCELLED, FinishReason.CANCELLED)
                )
                ended += answer == "ok"
            # Last: if this process dies before it, the next round cancels the rest of the group.
            with store_errors():
                await self._redis.srem(keys.LATE, raw)
        return ended

    async def _is_held(self, batch_id: str, index: int) -> bool:
        """Whether a rollout waits in a stage for its whole group; it is delivered next where others have been."""
        with store_errors():
            return bool(await self._redis.hexists(keys.rollout(keys.uid_of(batch_id, index)), "held"))

    async def end_precancelled(self) -> int:
        """Ends rollouts that were cancelled before their submit; returns how many."""
        with store_errors():
            precancelled = await self._redis.smembers(keys.PRECANCELLED)
        ended = 0
        for raw in precancelled:
            split = keys.split_uid(raw.decode())
            answer = "gone" if split is None else await self._rollouts.cancel_at(*split)
            ended += answer == "ok"
            # The script that ends a rollout takes it off this list. Nothing would take off one whose batch was deleted.
            if answer == "gone":
                with store_errors():
                    await self._redis.srem(keys.PRECANCELLED, raw)
        return ended

    async def capacity(self) -> Capacity:
        """Reads how full the pool is."""
        with store_errors():
            pipe = self._redis.pipeline(transaction=False)
            pipe.get(keys.OPEN)
            pipe.info("memory")
            pipe.hvals(keys.PIECES)
            pipe.hgetall(keys.USAGE)
            pipe.hget(keys.ROOM, "slots")
            still_open, memory, pieces, usage, slots = await pipe.execute()
        return Capacity(
            open_rollouts=int(still_open or 0),
            used_bytes=int(memory["used_memory"]),
            max_bytes=int(memory.get("maxmemory", 0)),
            pieces_bytes=sum(map(int, pieces)),
            usage=usage_of(usage, int(still_open or 0), slots),
        )

    async def copy_of(self, uid: str) -> NewBatch | None:
        """Makes a new batch of one out of a rollout, under its owner's name; None where the rollout is unknown."""
        split = keys.split_uid(uid)
        if split is None:
            return None
        batch_id, index = split
        with store_errors():
            owner, shared, priority, labels = await self._redis.hmget(
                keys.batch(batch_id), "owner", "shared", "priority", "labels"
            )
            overrides = await self._redis.hget(keys.batch(batch_id, "items"), str(index))
        if shared is None or overrides is None:
            return None
        spec = {**orjson.loads(shared), **orjson.loads(overrides)}
        if spec.get("callback_api_key"):
            spec["callback_api_key"] = self._secrets.decrypt(spec["callback_api_key"])
        return NewBatch(
            batch_id=new_batch_id(),
            owner=owner.decode(),
            shared=orjson.dumps({key: spec.pop(key) for key in ("sampling_params", "metadata") if key in spec}),
            rollouts=[NewRollout(rollout_id=spec.get("rollout_id"), overrides=orjson.dumps(spec))],
            priority=Priority(priority.decode()),
            labels={**orjson.loads(labels), "requeued_from": uid},
            asks=asks_of(None, [spec]),
            attaches=bool(spec.get("attach")),
            trunk=await self._rollouts.trunk(batch_id),
        )

    async def submitted(self, owner: str, idempotency_key: str) -> str | None:
        """Returns the batch that this idempotency key has brought, with any content; None where it is free."""
        seen = await self._seen(owner, idempotency_key)
        return None if seen is None else seen[0]

    async def repeated(self, new: NewBatch) -> Submitted | None:
        """Finds the batch of an equal submit, and writes nothing; raises `IdempotencyKeyReused`."""
        seen = await self._seen(new.owner, new.idempotency_key) if new.idempotency_key else None
        return None if seen is None else _same(*seen, new)

    async def _seen(self, owner: str, idempotency_key: str) -> tuple[str, str] | None:
        """Reads which batch a key has brought, and the digest of that request."""
        with store_errors():
            batch_id, digest = await self._redis.hmget(keys.idempotency(owner, idempotency_key), "batch", "digest")
            # While its batch is deleted, a key is free (`commit.lua`).
            if batch_id is None or await self._redis.hexists(keys.batch(batch_id.decode()), "deleting"):
                return None
        return batch_id.decode(), digest.decode()

    async def total(self, batch_id: str, owner: str | None, *, reader: str | None = None) -> int | None:
        """Reads how many rollouts a batch has."""
        with store_errors():
            total, owned_by, lease = await self._redis.hmget(keys.batch(batch_id), "total", "owner", "lease_ms")
        if total is None or owner not in (None, owned_by.decode()):
            return None
        if lease is not None and reader == owned_by.decode():
            await self._connection.script("renew_lease", batch_id)
        return int(total)

    async def is_deleted(self, batch_id: str) -> bool:
        """Tells whether a batch is gone, or its deletion has begun."""
        # Waiters that wake in one moment ask together.
        total, deleting = await self._connection.command("HMGET", keys.batch(batch_id), "total", "deleting")
        return total is None or deleting is not None

    async def status(self, batch_id: str, owner: str | None) -> BatchStatus | None:
        """Reads the state of a batch; `batch_state.read_state` says how."""
        return await read_state(self._connection, self._pool, batch_id, owner)

    async def ended(self, batch_id: str, cursor: str, limit: int) -> EndedSlice:
        """Reads which rollouts ended after a cursor, in the order of their ends, and none of their results.

        A cursor from before the last start of Redis counts as the start: Redis may have lost results then, and stored
        others in their place. A reader that gets a result again knows it by its uid.
        """
        known, _, after = cursor.rpartition(".")
        with store_errors():
            while True:
                pipe = self._redis.pipeline(transaction=False)
                pipe.hget(keys.EPOCH, "number")
                pipe.hmget(keys.batch(batch_id), "total", "ended", "deleting")
                pipe.xrange(keys.batch(batch_id, "done"), "-" if after == "0" else f"({after}", "+", count=limit)
                n, (total, ended, deleting), entries = await pipe.execute()
                epoch = "0" if n is None else n.decode()
                # At most two rounds: the second one reads from the start.
                if after == "0" or known == epoch:
                    break
                cursor = after = "0"
        if deleting is not None:
            raise BatchDeleted(f"batch {batch_id}: {BatchDeleted.__doc__}")
        items = [
            EndedRollout(f"{epoch}.{at.decode()}", int(entry[b"index"]), RolloutStatus(entry[b"status"].decode()))
            for at, entry in entries
        ]
        next_cursor = f"{epoch}.{entries[-1][0].decode()}" if entries else cursor
        # `ended` was read before the entries, so a full count with a short page means that nothing follows.
        complete = total is not None and ended is not None and int(ended) >= int(total) and len(entries) < limit
        return EndedSlice(items, next_cursor, complete)

    async def results(self, batch_id: str, cursor: str, limit: int) -> ResultSlice:
        """Reads the results that ended after a cursor; like `ended` otherwise."""
        ended = await self.ended(batch_id, cursor, limit)
        names = [keys.rollout(keys.uid_of(batch_id, item.index), "result") for item in ended.items]
        with store_errors():
            found = await self._redis.mget(names) if names else []
        if None in found:
            raise BatchDeleted(f"batch {batch_id}: {BatchDeleted.__doc__}")
        items = [(item.cursor, expand(data)) for item, data in zip(ended.items, found, strict=True)]
        return ResultSlice(items, ended.next_cursor, ended.complete)

    async def cancel(self, batch_id: str, cause: CancelCause = CancelCause.CALLER) -> int:
        """Cancels each rollout that has not ended, and tells capabilities of the others; returns how many it ended."""
        return await cancel_batch(self._connection, batch_id, cause)

    async def interrupted_cancellations(self) -> list[str]:
        """Returns batches whose cancellation is not complete, because the process that did it has died."""
        return await interrupted(self._connection)

    async def delete(self, batch_id: str) -> None:
        """Deletes an ended batch and everything of its rollouts; raises `BatchStillRunning`."""
        await delete_batch(self._connection, batch_id)


def _same(batch_id: str, digest: str, new: NewBatch) -> Submitted:
    """Says that a request was accepted before; raises `IdempotencyKeyReused` where it was another one."""
    if digest != new.digest:
        raise IdempotencyKeyReused(batch_id=batch_id)
    return Submitted(batch_id, created=False)


def _refusal(answer: Mapping[str, Any], new: NewBatch) -> StoreError:
    """Makes the error of a submit that `commit.lua` has refused."""
    cause, now, most = RefusalCause(answer["cause"].decode()), int(answer["now"]), int(answer["most"])
    match cause:
        case RefusalCause.OPEN:
            return TooManyOpen(f"{now:,} of at most {most:,} rollouts are open: {TooManyOpen.__doc__}")
        case RefusalCause.MEMORY:
            return NoRoom(f"{now:,} of {most:,} bytes of Redis are in use or reserved: {NoRoom.__doc__}")
    what = {
        RefusalCause.QUOTA_OPEN: f"open rollouts: {now:,} of its quota of {most:,} (open=)",
        RefusalCause.QUOTA_WEIGHT: f"weights of open batches: {now:,} of its quota of {most:,} (weight=)",
        RefusalCause.QUOTA_BYTES: f"memory in Redis: {now:,} bytes of its quota of {most:,} (bytes=)",
        RefusalCause.SHARE_OPEN: f"open rollouts: {now:,}, and while the pool is full its share is {most:,}",
        RefusalCause.SHARE_BYTES: f"memory in Redis: {now:,} bytes, and while that is short its share is {most:,}",
    }[cause]
    told = f"{new.owner!r} holds too much for this batch to be added. {what[:1].upper()}{what[1:]}"
    if cause is RefusalCause.QUOTA_OPEN and len(new.rollouts) > most:
        # To wait would not help.
        told += f". The batch alone has {len(new.rollouts):,}: submit it in parts"
    return OverQuota(told, cause=cause)
