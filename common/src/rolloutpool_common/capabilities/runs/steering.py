"""Runs: the version that a trainer announces, and its pauses. Its batches say what follows from both.

1. A run is `{owner}/{name}`; names of two owners are apart. Its state is a small hash, which is kept for a week after
   its last change or batch, and as long as it is paused. `steer.lua` changes it.
2. The version that counts is the announced one; without it, the newest that rollouts of the run were sampled by.
3. Workers `look` before each model call: one read, which travels together with their scripts.
4. A pause that nobody ends is ended by the reconciler, with the batches of the run (`StoredRuns.tidy`). Its time is of
   the served clock (`tick.lua`), so it stands still while Redis or the API is away.
"""

from datetime import UTC, datetime
from typing import NamedTuple

from rolloutpool_common.capabilities.runs.stored import steering_key
from rolloutpool_common.capabilities.runs.wire import RunState
from rolloutpool_common.errors import RolloutPoolError
from rolloutpool_common.store import Store
from rolloutpool_common.store.answers import named
from rolloutpool_common.store.keys import run_key


class RunUnknown(RolloutPoolError):
    """No batch was submitted under this run, and nothing was announced."""


class VersionLower(RolloutPoolError):
    """The run's announced version is higher; a trainer that went back to an older checkpoint says so (`rollback`)."""


class TooManyRuns(RolloutPoolError):
    """10,000 runs are known, all of the last week."""


class RunFacts(NamedTuple):
    """Holds what a worker has to know before a model call."""

    paused: bool = False
    announced: int | None = None
    reported: int | None = None

    @property
    def version(self) -> int | None:
        """The version that counts; None where nobody has said one."""
        return self.reported if self.announced is None else self.announced


class Runs:
    """The runs in one store."""

    def __init__(self, store: Store) -> None:
        self._connection = store.connection

    async def read(self, owner: str, run: str) -> RunState:
        """Reads the state of a run; raises `RunUnknown`."""
        return await self._steer(owner, run, "read")

    async def announce(self, owner: str, run: str, version: int, *, rollback: bool = False) -> RunState:
        """Sets the version of the newest weights."""
        return await self._steer(owner, run, "announce", version, int(rollback))

    async def pause(self, owner: str, run: str, *, limit_s: float) -> RunState:
        """Pauses a run, or prolongs its pause."""
        return await self._steer(owner, run, "pause", "", 0, int(limit_s * 1000))

    async def resume(self, owner: str, run: str) -> RunState:
        """Ends a pause; changes nothing where there is none. Raises `RunUnknown`."""
        return await self._steer(owner, run, "resume")

    async def report(self, key: str, version: int) -> None:
        """Notes a version that rollouts were sampled by, if it is the newest so far."""
        await self._connection.script("steer", key, "report", version, 0, 0)

    async def look(self, key: str) -> RunFacts:
        """Reads what a worker has to know before a model call; `key` is as `run_key` makes it."""
        paused, announced, reported = await self._connection.command(
            "HMGET", steering_key(key), "paused_ms", "version", "reported"
        )
        return RunFacts(paused is not None, _number(announced), _number(reported))

    async def _steer(
        self, owner: str, run: str, what: str, version: int | str = "", rollback: int = 0, limit_ms: int = 0
    ) -> RunState:
        answer = named(await self._connection.script("steer", run_key(owner, run), what, version, rollback, limit_ms))
        match answer["outcome"]:
            case b"unknown":
                raise RunUnknown(f"run {run[:64]!r}: {RunUnknown.__doc__}")
            case b"full":
                raise TooManyRuns
            case b"lower":
                known = answer["version"].decode()
                raise VersionLower(
                    f"run {run[:64]!r} is at version {known}, {version} was given: {VersionLower.__doc__}"
                )
        left_ms = _number(answer["left_ms"])
        return RunState(
            run=run,
            policy_version=_number(answer["version"]),
            reported_version=_number(answer["reported"]),
            announced_at=_time(answer["announced_ms"]),
            paused_at=_time(answer["paused_ms"]),
            pause_left_s=None if left_ms is None else left_ms / 1000,
        )


def _number(text: bytes | None) -> int | None:
    return int(text) if text else None


def _time(ms: bytes) -> datetime | None:
    return datetime.fromtimestamp(int(ms) / 1000, UTC) if ms else None
