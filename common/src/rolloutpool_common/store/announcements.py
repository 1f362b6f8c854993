"""Announcements: what a worker says of itself, as another process reads it, whatever its build.

1. An announcement has a `wire` version. It rises when a reader of the version before would misread what it says; a
   field that is added does not change it.
2. A field that is not known is ignored, and one that a build did not have yet gets its default. Announcements without
   `wire` are of releases before there was one.
3. What cannot be read is an `UnreadableWorker` that says why. It is never an exception: one such worker must not keep
   the pool from listing the others, or from taking work.
"""

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import orjson
from pydantic import ConfigDict, Field, ValidationError

from rolloutpool_common.composition import WorkerFields
from rolloutpool_common.protocol.offers import offer_names, plugins_of
from rolloutpool_common.protocol.tools import ToolDefinition
from rolloutpool_common.protocol.workers import UnreadableWorker, Worker, WorkerRole, WorkerState

WIRE_VERSION = 1
"""Of the announcements that this build writes, and the highest that it reads."""
LATE_SECONDS = 5.0
"""After ten missed beats a worker is shown as stalled or silent, and the broker's window does not count on it. That is
no verdict: the age is of Redis' clock, which goes on while Redis is away."""
LONGEST_WHY = 300


class Announcement(WorkerFields):
    """Holds what a worker announces once; the fields of `protocol.workers.Worker` that do not change."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    wire: int = 0
    """0: of a release that announced no version."""
    role: WorkerRole = WorkerRole.SHARED
    """The first releases had no roles."""
    host: str
    pid: int
    slots: int
    tools: list[ToolDefinition] = Field(default_factory=list)
    agents: list[str] = Field(default_factory=list)
    termination_strategies: list[str] = Field(default_factory=list)
    environments: list[str] = Field(default_factory=list)
    reads: int = 2
    """The newest schema of data that it reads; workers of release 0.2 and before do not say."""
    tokenizers: dict[str, dict[str, str]] = Field(default_factory=dict)
    own_tokenizers: list[str] | None = None
    versions: dict[str, str] = Field(default_factory=dict)
    started_at: float = Field(default_factory=time.time)

    def offer(self) -> list[str]:
        """Lists what the worker offers (`protocol/offers.py`)."""
        return offer_names(
            tools=[tool.function.name for tool in self.tools],
            agents=self.agents,
            termination_strategies=self.termination_strategies,
            environments=self.environments,
            others=plugins_of(self),
            reads=self.reads,
        )


def read_announcement(
    worker_id: str, fields: Mapping[bytes, bytes], age_s: float, *, subscribed: bool
) -> Worker | UnreadableWorker:
    """Reads the record of a worker."""
    try:
        about = _read(fields[b"about"])
        if isinstance(about, int):
            why = f"it announces wire version {about}, and this API reads up to {WIRE_VERSION}; update the API"
            return UnreadableWorker(worker_id=worker_id, why=why, last_beat_age_s=age_s)
        return _worker(worker_id, about, fields, age_s, subscribed)
    except ValidationError as error:
        why = "; ".join(f"{'.'.join(map(str, one['loc'])) or 'it'}: {one['msg']}" for one in error.errors()[:3])
    except (ValueError, OverflowError, OSError) as error:
        # Text that is no JSON, a number that is none, a date beyond all dates.
        why = f"{type(error).__name__}: {error}"
    return UnreadableWorker(worker_id=worker_id, why=why[:LONGEST_WHY], last_beat_age_s=age_s)


@lru_cache(maxsize=256)
def _read(text: bytes) -> Announcement | int:
    """Reads an announcement, or only its wire version where that is too high. It is read with each batch and round."""
    about = orjson.loads(text)
    wire = about.get("wire", 0) if isinstance(about, dict) else 0
    if isinstance(wire, int) and wire > WIRE_VERSION:
        return wire
    return Announcement.model_validate(about)


def _worker(
    worker_id: str, about: Announcement, fields: Mapping[bytes, bytes], age_s: float, subscribed: bool
) -> Worker:
    state = _state(age_s, subscribed)
    warm: Any = orjson.loads(fields[b"tokenizers"]) if b"tokenizers" in fields else about.tokenizers
    return Worker(
        **about.model_dump(exclude={"tools", "tokenizers", "started_at"}),
        worker_id=worker_id,
        running=int(fields.get(b"running", 0)),
        tools=[tool.function.name for tool in about.tools],
        tool_definitions=about.tools,
        tokenizers=warm,
        loading=orjson.loads(fields.get(b"loading", b"[]")),
        unloaded=orjson.loads(fields.get(b"unloaded", b"[]")),
        draining=fields.get(b"draining") == b"1",
        started_at=datetime.fromtimestamp(about.started_at, UTC),
        last_beat_age_s=age_s,
        alive=state is not WorkerState.SILENT,
        state=state,
        lifeline=fields.get(b"life") == b"1",
    )


def _state(age_s: float, subscribed: bool) -> WorkerState:
    if age_s < LATE_SECONDS:
        return WorkerState.ALIVE
    return WorkerState.STALLED if subscribed else WorkerState.SILENT


def offer_of(worker: Worker) -> Sequence[str]:
    """Lists what a worker offers (`protocol/offers.py`)."""
    return offer_names(
        tools=worker.tools,
        agents=worker.agents,
        termination_strategies=worker.termination_strategies,
        environments=worker.environments,
        others=plugins_of(worker),
        reads=worker.reads,
    )
