"""Says what runs keep in Redis, and what the store does for them. Who changes it is in `steering`.

{run} is `{owner}/{name}`:
rp:steering:{run}          hash    version, announced_ms, reported, paused_ms, since_ms; a week longer than it is of use
rp:known_runs              zset    run -> ms of its last change or batch; at most 10,000

`rp:paused` is the kernel's: a run in it takes no turns. Its score is the time of the served clock at which the pause is
over. Fields of a batch's hash: `max_staleness`, `on_stale`, `stale:{what}`; of a rollout's: `stale`, how often it has
begun again.
"""

import logging
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from rolloutpool_common.capabilities.runs.wire import OnStale, StaleEnd
from rolloutpool_common.capability import Counter, Encryption, Ends, Gauge, StoredCapability, StoreDoor, Total
from rolloutpool_common.protocol.waiting import Waiting, WaitsFor

if TYPE_CHECKING:
    from rolloutpool_common.protocol.batch import BatchRequest

AT_ONCE = 20
"""Pauses that one round ends. The others are as late as it takes to cancel the batches of these."""
LOOKED_AT = 500
"""Batches that one script looks at: some 2 ms of Redis."""
PAUSED = "rp:paused"

_log = logging.getLogger(__name__)


def steering_key(run: str) -> str:
    """Returns the key of what is known of a run."""
    return f"rp:steering:{run}"


class StoredRuns(StoredCapability):
    """Versions and pauses of runs, as the store sees them."""

    name = "runs"
    mark = "run"
    said = MappingProxyType({"stale": "stale_versions"})
    counted = ("stale",)
    gauges = (Gauge("runs_paused", "Runs that are paused.", PAUSED),)
    totals = (Total("pauses", "run_pauses", "Pauses of runs."),)
    counters = (
        Counter(
            "stale",
            "rollouts_stale",
            "Rollouts that were too old for their batch, by what became of them; restarts count each time.",
            "what",
            (*StaleEnd, "restarted"),
        ),
    )

    def asked(self, batch: "BatchRequest | None", rollouts: Iterable[Mapping[str, Any]]) -> tuple[int, OnStale] | None:
        """Returns how old weights may be, and what happens to older ones, where the batch has a limit."""
        return None if batch is None or batch.max_staleness is None else (batch.max_staleness, batch.on_stale)

    def kept(self, asked: tuple[int, OnStale], secrets: Encryption) -> Mapping[str, int | str]:
        """The limit. That the batch has a run is written for its turns in the queue."""
        return dict(zip(("max_staleness", "on_stale"), asked, strict=True))

    def state(self, fields: Mapping[str, bytes]) -> dict[str, Any]:
        """How many rollouts were too old."""
        stale = {name.removeprefix("stale:"): int(n) for name, n in sorted(fields.items()) if name.startswith("stale:")}
        return {"stale": stale}

    async def stopped(self, door: StoreDoor, run: str) -> Waiting | None:
        """Says that a run is paused. Nothing is written for this: the run's own state says it."""
        paused_ms = await door.redis.hget(steering_key(run), "paused_ms")
        if paused_ms is None:
            return None
        since = datetime.fromtimestamp(int(paused_ms) / 1000, UTC)
        message = f"the run {run.partition('/')[2]!r} is paused since {since:%H:%M:%S} UTC; resume it"
        return Waiting(waits_for=WaitsFor.PAUSED, message=message)

    async def tidy(self, door: StoreDoor, ends: Ends) -> int:
        """Ends the pauses that nobody has ended in time, with the batches of their runs; returns how many."""
        ended = 0
        clock_ms = await door.redis.hget("rp:served", "clock_ms")
        for raw in await door.redis.zrangebyscore(PAUSED, "-inf", clock_ms or 0, start=0, num=AT_ONCE):
            run = raw.decode()
            batches = await self._open_batches(door, run)
            if not await door.script("end_pause", run, *batches):
                continue
            ended += 1
            _log.warning("run %s was paused for too long: %d of its batches are cancelled", run, len(batches))
            # The pause has ended in the step that began this.
            waited = Waiting(waits_for=WaitsFor.PAUSED, message="its run was paused, and nobody resumed it in time")
            for batch_id in batches:
                await ends.cancel(batch_id, waited)
        return ended

    async def _open_batches(self, door: StoreDoor, run: str) -> list[str]:
        owner, found, ms, last = run.partition("/")[0], [], "", ""
        while True:
            answer = await door.script("list_batches", owner, 0, ms, last, LOOKED_AT, LOOKED_AT, "running", run)
            page = dict(zip(answer[::2], answer[1::2], strict=True))
            found += [entry[0].decode() for entry in page[b"batches"]]
            ms, last = page[b"ms"].decode(), page[b"batch"].decode()
            if not last:
                return found
