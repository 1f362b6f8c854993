"""The gate before each model call of a rollout that belongs to a run: is the run paused, is the rollout too old?

1. Before a call is sent, the first of a turn or another, the run's state is read (`Runs.look`, one small read). So a
   call that is sent after a pause was answered cannot have been let through by an older state.
2. If the run is paused, the rollout waits. All that wait in this process share one task, which looks twice a second.
   After `HOLD_SECONDS` the rollout goes back to the queue, because other runs need its slot; it is published again
   when the run is resumed. It stays where a part of the turn, or the session of its environment, would be lost.
3. Then its staleness is compared with `max_staleness`: the run's version minus the oldest version that sampled it, or,
   before anything was sampled, the run's version when this attempt began. Once more at its end.
   A rollout that has not begun does not begin at an engine whose own weights are too old: it goes back to the queue
   for ten seconds.
4. Where the trainer announces nothing, the newest version that rollouts were sampled by is the run's.

Example: `max_staleness` is 2. Version 10 samples turns 1 and 2; 13 is announced during turn 3. That call goes on, and
before turn 4 the staleness is 3.
"""

import asyncio
import time
from collections import Counter
from typing import Any

from rolloutpool_common.capabilities.runs.claimed import ClaimedRun
from rolloutpool_common.capabilities.runs.metrics import RUNNING_LAG
from rolloutpool_common.capabilities.runs.steering import RunFacts, Runs
from rolloutpool_common.capabilities.runs.wire import OnStale, StaleEnd, StaleVersions
from rolloutpool_common.outcomes import FinishReason, RolloutEnd, RolloutStatus
from rolloutpool_common.process.metrics import IN_PAUSE
from rolloutpool_common.protocol.result import RolloutResult
from rolloutpool_common.protocol.waiting import Waiting, WaitsFor
from rolloutpool_common.store import Claim, StoreError
from rolloutpool_common.tokens.entries import SampledEntry
from rolloutpool_common.tokens.versions import version_bounds
from rolloutpool_worker.conversation.conversation import Conversation
from rolloutpool_worker.conversation.journal import Journal
from rolloutpool_worker.conversation.store_retry import retry_store
from rolloutpool_worker.drain import Drain, Drained, EndedAtBorder, RolloutStop, StoppedAtBorder
from rolloutpool_worker.policy.waits import RolloutWaits

HOLD_SECONDS = 30.0
"""How long a rollout keeps its slot while its run is paused. A weight update of one machine takes less."""
LOOK_SECONDS = 0.5
WEIGHTS_SECONDS = 10.0
"""Until a rollout is tried again whose engine has weights that are too old."""
MOST_RESTARTS = 3
"""A rollout that is stale so often is longer than the trainer's steps allow."""
LARGEST = 10**15
"""Versions from here on are not reported, because Redis' scripts could not compare them exactly."""


class RunPaused(StoppedAtBorder):
    """The run is paused; the rollout goes on when it is resumed."""


class StaleRestart(StoppedAtBorder):
    """The weights that sampled this rollout are too old; it begins again with the newest ones."""


class WeightsStale(StoppedAtBorder):
    """The engine has older weights than the batch allows; the rollout begins when it was updated."""


class RolloutStale(EndedAtBorder):
    """The weights that sampled this rollout are too old, and it is dropped."""

    end = RolloutEnd(RolloutStatus.CANCELLED, FinishReason.STALE)


class RunGates:
    """The gates of one process."""

    def __init__(self, runs: Runs, drain: Drain) -> None:
        self._runs = runs
        self._drain = drain
        self._open: set[RunGate] = set()
        self._watches: dict[str, asyncio.Task[None]] = {}
        self._versions: dict[str, int] = {}
        """By run, as read last."""
        self._open_of: Counter[str] = Counter()
        """How many gates each run has here."""
        RUNNING_LAG.read = self.largest_lag

    def of(self, claim: Claim, stop: RolloutStop, waits: RolloutWaits) -> "RunGate":
        """Makes the gate of an attempt, which closes it."""
        gate = RunGate(self, self._runs, self._drain, claim, stop, waits)
        self._open.add(gate)
        self._open_of[gate.run] += 1
        return gate

    def left(self, gate: "RunGate") -> None:
        """Forgets a gate whose attempt is over."""
        if gate not in self._open:
            return
        self._open.remove(gate)
        self._open_of[gate.run] -= 1
        # A run of which nothing is left here would only take memory.
        if not self._open_of[gate.run]:
            del self._open_of[gate.run]
            self._versions.pop(gate.run, None)

    def note(self, run: str, version: int | None) -> None:
        """Remembers which version a run was at."""
        if version is not None:
            self._versions[run] = version

    def largest_lag(self) -> float:
        """How far the oldest rollout that runs here is behind its run."""
        known = self._versions
        return float(
            max(
                (known[gate.run] - gate.oldest for gate in self._open if gate.run in known and gate.oldest is not None),
                default=0,
            )
        )

    async def resumed(self, run: str, seconds: float) -> None:
        """Waits until a run may have been resumed, or this process shuts down, for so many seconds at most."""
        watch = self._watches.get(run)
        if watch is None:
            watch = self._watches[run] = asyncio.create_task(self._watch(run))
            watch.add_done_callback(lambda _: self._watches.pop(run))
        # Many wait for this one task, and a rollout that is cancelled must not end it.
        await asyncio.wait({watch}, timeout=seconds)

    async def _watch(self, run: str) -> None:
        while True:
            try:
                await self._drain.pause(LOOK_SECONDS)
                if not (await self._runs.look(run)).paused:
                    return
            except Drained:
                return
            except StoreError:
                # Who waits asks the store itself before it goes on.
                continue


class RunGate:
    """The gate of one attempt."""

    def __init__(
        self,
        gates: RunGates,
        runs: Runs,
        drain: Drain,
        claim: Claim,
        stop: RolloutStop,
        waits: RolloutWaits,
    ) -> None:
        self.run, self._max_staleness, self._on_stale, self._restarts = ClaimedRun.of(claim)
        self.oldest: int | None = None
        """The oldest version that sampled it, or the run's when the attempt began; None where it is unknown."""
        self._staleness: int | None = None
        """How many versions that was behind the run, when it was compared last."""
        self._stale: StaleEnd | None = None
        self._versions: StaleVersions | None = None
        """Of a rollout that was too old."""
        self._gates = gates
        self._runs = runs
        self._drain = drain
        self._claim = claim
        self._stop = stop
        self._waits = waits
        self._talk: Conversation | None = None
        self._journal: Journal | None = None
        self._sampled_by: set[str | None] = set()
        """The versions in the entries of the ledgers that were read."""
        self._entries_read: dict[int, int] = {}
        """By branch."""
        self._began_at: int | None = None
        self._unreadable = False
        self._called = False

    def complete(self, result: RolloutResult) -> RolloutResult:
        """Says in a result how old its weights are; one that was dropped keeps nothing to train on.

        The warning `version_unreadable` says that the age is the attempt's, because a version is no decimal integer.
        """
        changes: dict[str, Any] = {
            "staleness": self._staleness,
            "stale": self._stale,
            "stale_versions": None if self._stale is None else self._versions,
        }
        if self._unreadable and self._max_staleness is not None:
            changes["warnings"] = [*result.warnings, "version_unreadable"]
        if result.finish_reason is FinishReason.STALE:
            changes |= {"samples": [], "messages": [], "alignment": None, "attachments": None, "replay": None}
        elif result.status is not RolloutStatus.COMPLETED:
            changes |= {"stale": None, "stale_versions": None}
        return result.model_copy(update=changes)

    def guard(self, talk: Conversation, journal: Journal) -> None:
        """Names the conversation before which the gate stands, with its journal."""
        self._talk, self._journal = talk, journal

    def close(self) -> None:
        """Forgets the attempt."""
        self._gates.left(self)

    async def before_call(self, *, midway: bool = False, weights: str | None = None) -> bool:
        """Waits while the run is paused; after that, weights that were named before are not compared."""
        facts = await self._look()
        if facts.paused:
            facts = await self._wait(midway)
            if weights is not None:
                return True
        await self._compare(facts, StaleEnd.DROPPED if self._called else StaleEnd.NOT_STARTED, weights)
        self._called = True
        return False

    async def at_end(self) -> None:
        """Compares once more, when the agent has come to an end; raises as `before_call`, and waits for nothing."""
        await self._compare(await self._look(), StaleEnd.DROPPED)

    async def _look(self) -> RunFacts:
        return await retry_store(self._drain, self._claim.uid, lambda: self._runs.look(self.run))

    async def _wait(self, midway: bool) -> RunFacts:
        """Waits, and until then nothing is noted as asked, where the policy must not be asked twice."""
        if self._talk is None or self._journal is None or self._claim.spec.may_repeat:
            return await self._hold(midway)
        # What another branch has in flight was asked, whatever becomes of this call.
        if sum(branch.calling for branch in self._talk.branches) > 1:
            return await self._hold(midway)
        await self._journal.take_back_calling(certain=self._talk.all_certain)
        facts = await self._hold(midway)
        await self._journal.note_calling()
        return facts

    async def _hold(self, midway: bool) -> RunFacts:
        before, until = self._waits.now, time.monotonic() + HOLD_SECONDS
        self._waits.now = Waiting(waits_for=WaitsFor.PAUSED, message="its run is paused")
        stays = midway or self._stop.stays
        with IN_PAUSE:
            while True:
                self._stop.check()
                left = until - time.monotonic()
                if left <= 0 and not stays:
                    raise RunPaused
                await self._gates.resumed(self.run, HOLD_SECONDS if stays else left)
                facts = await self._look()
                if not facts.paused:
                    break
                if self._drain.begun:
                    # It stays for as long as the process does, and nothing watches the run for it any more.
                    await asyncio.sleep(LOOK_SECONDS)
        self._waits.now = before
        return facts

    def _read_ledger(self) -> None:
        """Reads what the ledgers have got since the last time. They are only appended to, so the rest is known."""
        if self._talk is None:
            return
        for branch in self._talk.branches:
            read = self._entries_read.get(branch.number, 0)
            new = branch.tokens.ledger.entries_since(read)
            self._entries_read[branch.number] = read + len(new)
            self._sampled_by.update(entry.policy_version for entry in new if isinstance(entry, SampledEntry))

    async def _compare(self, facts: RunFacts, end: StaleEnd, weights: str | None = None) -> None:
        self._read_ledger()
        oldest, newest = version_bounds(self._sampled_by)
        version = facts.version
        if facts.announced is None and newest is not None and newest < LARGEST and newest > (facts.reported or -1):
            reported = newest
            await retry_store(self._drain, self._claim.uid, lambda: self._runs.report(self.run, reported))
            version = reported
        if self._began_at is None:
            self._began_at = version
        self._unreadable = bool(self._sampled_by) and oldest is None
        self.oldest = self._began_at if oldest is None else oldest
        self._gates.note(self.run, version)
        if version is None or self.oldest is None:
            return
        self._staleness = version - self.oldest
        limit = self._max_staleness
        engine = None if self._sampled_by else version_bounds([weights])[0]
        if limit is None or (self._staleness if engine is None else version - engine) <= limit:
            return
        if engine is not None and self._on_stale is not OnStale.FINISH:
            stale = WeightsStale(
                f"the engine has version {engine}; the run is at {version}, and version {version - limit} is allowed"
            )
            await self._waits.failed(stale, 1, WEIGHTS_SECONDS)
            raise stale
        self._versions = StaleVersions(sampled=self.oldest, run=version, allowed=version - limit)
        match self._on_stale:
            case OnStale.FINISH:
                self._stale = StaleEnd.FINISHED
            case OnStale.RESTART if self._restarts < MOST_RESTARTS and self._claim.spec.token_in:
                raise StaleRestart(f"{self._versions.message}; it begins again")
            case _:
                self._stale = end
                raise RolloutStale(self._versions.message)
