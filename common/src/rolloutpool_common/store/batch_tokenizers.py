"""Says which tokenizers the rollouts of a batch need, so that a worker can load one before it claims a rollout.

1. A submit writes the batch's distinct tokenizers into its hash: nearly always one, several if rollouts choose.
2. A worker that gets a ticket reads them, once per batch. Only if there are several, it reads the rollout's own fields.
3. A worker that starts asks which tokenizers the live batches need, and loads them before it takes work.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable
from typing import Any, NamedTuple

import orjson

from rolloutpool_common.protocol.batch import Priority
from rolloutpool_common.store import keys
from rolloutpool_common.store.connection import Connection
from rolloutpool_common.store.errors import store_errors
from rolloutpool_common.store.lanes import lanes_of
from rolloutpool_common.store.records import NewBatch

BATCHES = 1024
"""How many batches' tokenizers are remembered, and how many batches a starting worker looks at."""
CLAIMS = 64
"""How many claims of each worker a starting worker looks at."""
_FIELDS = ("tokenizers", "owner", "shared", "v1", "run")
"""What is read of a batch."""
_NAME, _REVISION = "tokenizer_name", "tokenizer_revision"


class TokenizerRef(NamedTuple):
    """A tokenizer as a rollout asks for it."""

    name: str
    revision: str | None = None


class NeededTokenizer(NamedTuple):
    """Holds what a rollout needs."""

    ref: TokenizerRef
    owner: str
    """Whose rollout it is."""
    trainer: str = ""
    """Whom its batch's rollouts ask first of all; empty where something comes before that (`claim.lua`)."""


def tokenizers_field(new: NewBatch) -> bytes:
    """Returns the distinct tokenizers of a batch's rollouts as JSON, for the batch's hash."""
    shared = orjson.loads(new.shared)
    refs: dict[TokenizerRef, None] = {}
    for rollout in new.rollouts:
        # Reading each rollout's JSON would cost a large batch seconds, and few choose a tokenizer of their own.
        own = orjson.loads(rollout.overrides) if b'"tokenizer_' in rollout.overrides else {}
        if (ref := _ref(shared, own)) is not None:
            refs[ref] = None
    return orjson.dumps([tuple(ref) for ref in refs])


def _ref(shared: dict[str, Any], own: dict[str, Any]) -> TokenizerRef | None:
    merged = {**shared, **own}
    return TokenizerRef(merged[_NAME], merged.get(_REVISION)) if merged.get(_NAME) else None


class BatchTokenizers:
    """The tokenizers of the batches in one store."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._redis = connection.redis
        self._known: OrderedDict[str, tuple[tuple[TokenizerRef, ...], str, str]] = OrderedDict()

    async def of_rollout(self, uid: str) -> NeededTokenizer | None:
        """Returns the tokenizer that a rollout needs; None where its batch is unknown, or names none."""
        split = keys.split_uid(uid)
        if split is None:
            return None
        batch_id, index = split
        known = self._known.get(batch_id)
        if known is None:
            known = self._known[batch_id] = await self._read(batch_id)
            while len(self._known) > BATCHES:
                self._known.popitem(last=False)
        refs, owner, trainer = known
        if len(refs) <= 1:
            return NeededTokenizer(refs[0], owner, trainer) if refs else None
        with store_errors():
            shared = await self._redis.hget(keys.batch(batch_id), "shared")
            own = await self._redis.hget(keys.batch(batch_id, "items"), str(index))
        ref = None if shared is None or own is None else _ref(orjson.loads(shared), orjson.loads(own))
        return None if ref is None else NeededTokenizer(ref, owner)

    async def _read(self, batch_id: str) -> tuple[tuple[TokenizerRef, ...], str, str]:
        """Reads a batch's tokenizers, its owner, and whom its rollouts ask first of all."""
        # Two looks see the same: the commit writes all of it in one step, and only a deletion changes it.
        fields, recorded = await asyncio.gather(
            self._connection.command("HMGET", keys.batch(batch_id), *_FIELDS),
            self._connection.command("EXISTS", keys.batch(batch_id, "trunk")),
        )
        stored, owner, shared, v1, run = (field or b"" for field in fields)
        # A note of the call stays a write of its own for v1, runs and recorded turns (model_calls.py).
        is_plain = not v1 and run == batch_id.encode() and not recorded
        return _parse(stored), owner.decode(), _trainer_of(shared if is_plain else b"")

    async def of_live_batches(self, limit: int) -> list[TokenizerRef]:
        """Returns the tokenizers that queued and running rollouts need, the queued ones' first; at most `limit`."""
        with store_errors():
            batches = [batch_id async for batch_id in self._live()]
            pipe = self._redis.pipeline(transaction=False)
            for batch_id in batches:
                pipe.hget(keys.batch(batch_id), "tokenizers")
            stored = await pipe.execute() if batches else []
        return list(dict.fromkeys(ref for raw in stored for ref in _parse(raw)))[:limit]

    async def _live(self) -> AsyncIterator[str]:
        """Yields the ids of batches with open rollouts, each once: those in outboxes, in the broker, and running."""
        seen: set[str] = set()
        async for batch_id in self._candidates():
            if batch_id not in seen:
                seen.add(batch_id)
                yield batch_id
            if len(seen) >= BATCHES:
                return

    async def _candidates(self) -> AsyncIterator[str]:
        for priority in Priority:
            for lane in await lanes_of(self._redis, priority):
                for run in await self._redis.lrange(keys.runs(lane), 0, BATCHES - 1):
                    for batch_id in await self._redis.lrange(keys.run(lane, run.decode()), 0, BATCHES - 1):
                        yield batch_id.decode()
        for priority in Priority:
            for batch_id in _batches_of(await self._redis.zrange(keys.published(priority), 0, BATCHES - 1)):
                yield batch_id
        for batch_id in _batches_of(await self._redis.zrange(keys.DELAYED, 0, BATCHES - 1)):
            yield batch_id
        for worker in await self._redis.zrange(keys.WORKERS, 0, -1):
            claims = await self._redis.srandmember(keys.worker(worker.decode(), "claims"), CLAIMS)
            for batch_id in _batches_of(claims):
                yield batch_id


def _parse(stored: bytes | None) -> tuple[TokenizerRef, ...]:
    """Reads the field; a batch that was deleted has none."""
    return tuple(TokenizerRef(*ref) for ref in orjson.loads(stored)) if stored else ()


def _trainer_of(shared: bytes) -> str:
    """Returns the URL of the trainer that is asked first of all, as the shared fields of a batch say."""
    fields = orjson.loads(shared) if shared else {}
    stands_before = fields.get("environment") or fields.get("agent", "tool_calls") != "tool_calls"
    is_trainer = fields.get("protocol", "callback") == "callback" and not fields.get("messages_only")
    return str(fields.get("server_url") or "") if is_trainer and not stands_before else ""


def _batches_of(uids: Iterable[bytes]) -> Iterable[str]:
    for uid in uids:
        split = keys.split_uid(uid.decode())
        if split is not None:
            yield split[0]
