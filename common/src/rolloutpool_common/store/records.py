"""Holds what goes into the store and comes out of it, and how it is stored.

Records are JSON. Results and journal records of 4 kB and more are compressed with zstd (docs/decisions/0006). The first
byte tells the two forms apart: `{` for JSON, 0x28 for zstd.
"""

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import orjson
import zstandard
from pydantic import TypeAdapter, ValidationError

from rolloutpool_common.composition import COUNTED
from rolloutpool_common.outcomes import RolloutStatus
from rolloutpool_common.protocol.batch import Priority
from rolloutpool_common.protocol.groups import GroupPolicy
from rolloutpool_common.protocol.journal import JournalRecord, encode_record, record_length
from rolloutpool_common.protocol.messages import Message
from rolloutpool_common.protocol.options import RolloutSpec
from rolloutpool_common.protocol.result import RolloutResult, encode_result
from rolloutpool_common.security.api_keys import KeyQuota
from rolloutpool_common.store.usage import OwnerUsage, PoolUsage
from rolloutpool_common.store.v1_answers import V1Cut, V1End

LONG_RESULT = 65_536
"""Ids; to write so many takes 4 ms."""
LONG_RECORD = 200_000
"""Characters; to write and compress so many takes a millisecond."""
COMPRESS_FROM = 4096
"""Bytes."""
_NAMES = ("rollout_id", "group", "server_url")
_PLAIN = frozenset({"messages", *_NAMES})
"""Fields of a rollout's own that are checked by themselves."""
_MESSAGES: TypeAdapter[list[Message]] = TypeAdapter(list[Message])
_BATCHES = 64
"""Whose shared fields are remembered as validated."""
_MOST_SHARED = 65_536
"""Bytes of shared fields that are remembered."""


class _Zstd(threading.local):
    """The contexts of one thread: to make them anew costs a third of what reading a result costs."""

    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(level=1)
        self.decompressor = zstandard.ZstdDecompressor()


_zstd = _Zstd()


def compress(data: bytes) -> bytes:
    """Compresses a record where that pays: from `COMPRESS_FROM` on, by zstd at level 1."""
    return _zstd.compressor.compress(data) if len(data) >= COMPRESS_FROM else data


def expand(data: bytes) -> bytes:
    """Returns the JSON text of a stored record."""
    return _zstd.decompressor.decompress(data) if data[:1] == b"\x28" else data


def read_end(stored: bytes) -> V1End:
    """Reads the result of a rollout of protocol v1, and cuts v1's answer out of it."""
    if stored[:1] != b"\x28":
        return V1End(None, stored)
    reader = _zstd.decompressor.decompressobj()
    document = reader.decompress(stored)
    cut = V1Cut.parse(reader.unused_data)
    return V1End(None if cut is None else cut.answer(document), document)


@dataclass(frozen=True, kw_only=True)
class NewRollout:
    """One rollout of a batch that is submitted."""

    rollout_id: str | None
    """The caller's own name; None where it gave none, and the uid is used."""
    overrides: bytes = field(repr=False)
    """JSON object: the fields of its `RolloutSpec` that differ from the batch's shared ones."""
    group: str | None = None
    deadline_s: float | None = None
    """Seconds from the commit."""


@dataclass(frozen=True, kw_only=True)
class NewBatch:
    """A batch that is submitted, validated in full."""

    batch_id: str
    owner: str
    """The name of the API key that submitted it; other keys cannot see it."""
    shared: bytes = field(repr=False)
    """JSON object: the fields of `RolloutSpec` common to all."""
    rollouts: Sequence[NewRollout]
    priority: Priority = Priority.DEFAULT
    labels: dict[str, str] = field(default_factory=dict)
    asks: Mapping[str, object] = field(default_factory=dict)
    """What it asks of capabilities, by their names; those that are not named here it does not use."""
    run: str | None = None
    """The training run that it belongs to; runs share the workers by weight. None: a run of its own."""
    weight: int = 1
    lease_s: float | None = None
    """Seconds without a read after which it is cancelled."""
    group_policy: GroupPolicy | None = None
    idempotency_key: str | None = None
    trunk: bytes | None = field(default=None, repr=False)
    """The result, as JSON, of the rollout whose first turns these begin with; None where they sample all themselves."""
    digest: str = ""
    """Digest of the request. The same idempotency key with another digest is refused."""
    v1: bool = False
    """Came one by one over `POST /rollout`: listed apart from batches, and its key is forgotten soon after its end."""
    attaches: bool = False
    """Whether any of its rollouts asks an engine for attachments."""
    attachment_bytes: int = 0
    """What each of its rollouts may attach, if any of them asks for it."""


@dataclass(frozen=True, kw_only=True)
class SubmitLimits:
    """Holds what a batch must fit into."""

    max_open: int = 1_000_000
    """Rollouts that may be open in the whole pool."""
    quota: KeyQuota = field(default_factory=KeyQuota)
    """What its owner may hold."""
    new_bytes: int = 0
    """Reserved in Redis for each rollout of a run of which nothing is known."""
    memory_bytes: int = 0
    """In use in Redis a moment ago, or kept free for something else."""
    memory_limit_bytes: int = 0
    """Redis' `maxmemory`; 0 is none."""


class Submitted(NamedTuple):
    """Holds what a submit did."""

    batch_id: str
    created: bool
    """False: the same request was accepted before, and this is the batch of that time."""


@dataclass(frozen=True, slots=True)
class EndedRollout:
    """One entry of a batch's list of ends."""

    cursor: str
    """To be read on from."""
    index: int
    status: RolloutStatus


class EndedSlice(NamedTuple):
    """Some rollouts of a batch, in the order in which they ended."""

    items: list[EndedRollout]
    next_cursor: str
    """Where the next read begins."""
    complete: bool
    """Whether the batch has ended and no more ends follow."""


class ResultSlice(NamedTuple):
    """Some results of a batch, in the order in which they ended."""

    items: list[tuple[str, bytes]]
    """(cursor, JSON of a `RolloutResult`)"""
    next_cursor: str
    """Where the next read begins."""
    complete: bool
    """Whether the batch has ended and no more results follow."""


@dataclass(frozen=True)
class Ticket:
    """One rollout on its way through the broker."""

    batch_id: str
    index: int
    group: str
    published_ms: float
    """When it left the outbox, on Redis' clock."""
    batch_size: int
    """How many rollouts its batch has."""
    offer: str = ""
    """The digest of the offer whose queue it goes to; empty where every worker can run it."""


class Capacity(NamedTuple):
    """How full the pool is."""

    open_rollouts: int
    used_bytes: int
    max_bytes: int
    """0 where Redis has no limit."""
    pieces_bytes: int = 0
    """Of the vocabularies that are kept (`pieces.py`)."""
    usage: PoolUsage = PoolUsage(0, OwnerUsage())
    """What is accepted, and what it may still take."""


def merge_fields(shared: bytes | dict[str, Any], overrides: bytes | dict[str, Any], *, uid: str) -> dict[str, Any]:
    """Merges the batch's shared fields and a rollout's own, without validating them again.

    Its own fields replace the shared ones; sampling parameters and metadata are merged key by key.
    """
    base = orjson.loads(shared) if isinstance(shared, bytes) else shared
    own = orjson.loads(overrides) if isinstance(overrides, bytes) else overrides
    merged = {"rollout_id": uid, **base, **own}
    for key in ("sampling_params", "metadata"):
        merged[key] = {**base.get(key, {}), **own.get(key, {})}
    return merged


def merge_spec(shared: bytes | dict[str, Any], overrides: bytes | dict[str, Any], *, uid: str) -> RolloutSpec:
    """Makes the spec of one rollout out of the batch's shared fields and its own, as `merge_fields` does.

    What a batch shares is validated once, where its rollouts have nothing of their own but messages and names.
    """
    if isinstance(shared, bytes) and isinstance(overrides, bytes):
        own: dict[str, Any] = orjson.loads(overrides)
        is_plain = "messages" in own and own.keys() <= _PLAIN and len(shared) <= _MOST_SHARED
        if is_plain and all(type(own.get(name, "")) is str for name in _NAMES):
            template = _shared_spec(shared)
            if template is not None and (template.server_url or "server_url" in own):
                messages = _MESSAGES.validate_python(own["messages"])
                # A tool may write into its rollout's metadata.
                changes = {"rollout_id": uid, **own, "messages": messages, "metadata": {}}
                return template.model_copy(update=changes)
    return RolloutSpec.model_validate(merge_fields(shared, overrides, uid=uid))


@lru_cache(_BATCHES)
def _shared_spec(shared: bytes) -> RolloutSpec | None:
    """Validates what a batch shares; None where it is not the same for all of its rollouts."""
    base = orjson.loads(shared)
    if base.get("metadata") or not base.keys().isdisjoint(("rollout_id", "messages", "group")):
        return None
    try:
        return RolloutSpec.model_validate(merge_fields({"messages": [], "server_url": "", **base}, {}, uid=""))
    except ValidationError:
        # Then each rollout's own error names it.
        return None


async def finish_fields(
    result: RolloutResult, row_of: Callable[[RolloutResult], bytes] | None
) -> list[bytes | str | int]:
    """Returns what the script `finish` takes of a result. A long one is written in a thread, to spare the loop."""

    def write() -> list[bytes | str | int]:
        document = encode_result(result)
        stored, row = compress(document), b"" if row_of is None else row_of(result)
        if row_of is None and stored is not document and (cut := V1Cut.of(result, document)) is not None:
            stored += cut.frame()
        return [stored, row, *_result_counts(result)]

    ids = sum(len(sample.prompt_ids) + len(sample.response_ids) for sample in result.samples)
    return await asyncio.to_thread(write) if ids > LONG_RESULT else write()


async def journal_texts(records: Sequence[JournalRecord]) -> list[bytes]:
    """Returns records of a journal as they are stored. Long ones are written in a thread, so the event loop goes on."""

    def write() -> list[bytes]:
        return [compress(encode_record(record)) for record in records]

    return await asyncio.to_thread(write) if sum(map(record_length, records)) > LONG_RECORD else write()


async def journal_text(record: JournalRecord) -> bytes:
    """Does the same for one record, of which a turn writes two."""
    if record_length(record) > LONG_RECORD:
        return (await journal_texts((record,)))[0]
    return compress(encode_record(record))


def _result_counts(result: RolloutResult) -> list[str | int]:
    """Lists what a result adds to the counters of its batch and of the pool, as a script takes it."""
    counts: dict[str, int] = {
        "sampled": sum(sum(sample.response_mask) for sample in result.samples),
        "tokens": sum(len(sample.prompt_ids) + len(sample.response_ids) for sample in result.samples),
        "turns": result.num_llm_calls,
    }
    if result.alignment is not None:
        counts[f"alignment:{result.alignment}"] = 1
    if result.failure is not None:
        counts[f"failure:{result.failure.kind}:{result.failure.category}"] = 1
    for label, n in result.drift.items():
        counts[f"drift:{label}"] = n
    for name in COUNTED:
        if (value := getattr(result, name)) is not None:
            counts[f"{name}:{value}"] = 1
    for warning in result.warnings:
        counts[f"warning:{warning}"] = 1
    for turn in result.turns:
        for call in turn.tools:
            if call.error is not None:
                name = f"tool_error:{call.name}:{call.error}"
                counts[name] = counts.get(name, 0) + 1
    return [part for name, n in counts.items() if n for part in (name, n)]
