"""Verdicts: which workers are dead, by the evidence of many looks. Pure: it is given looks and a clock, no I/O.

A worker has two witnesses in Redis: its lifeline (`lifeline.py`), which ends with the process, and its beats, which end
as well when the process is paused, starved, or keeps Python's lock. So a missing beat alone proves little:

1. The lifeline is there: the worker exists. If for `stalled_s` (60 s) no beat said that it gets on, and none of its
   rollouts did, it is **stalled** for good, and others take its rollouts over. It may wake up again; the fence keeps it
   from writing. A beat says how long ago its loop turned, its consumer took a ticket, and Redis accepted what a rollout
   wrote; the shortest counts. So beats of a process whose loop stands do not save it, and one that finishes rollouts
   lives even without a beat.
2. No lifeline, but the beat has changed since the last look: it lives, and connects again.
3. No lifeline and no new beat, in at least `LOOKS` looks and for `ABSENT_SECONDS`: **absent**. The time is
   `CAREFUL_SECONDS` instead where it is likelier that the network failed than that the processes ended: where half of
   the workers (of three or more) went within one second, and where a worker had a supervisor that is gone too. A
   supervisor that is there would have reported an end. So its worker exists, cannot connect at the moment, and has as
   long as in rule 1: for example, one that was stopped while Redis was started again. So has a worker that has neither
   beaten nor connected since Redis was started: its lifeline ended with the Redis before, which proves nothing, and its
   host may be cut off.
4. A worker that says that its lifeline cannot be seen (`lifeline.py`, step 4) has one witness. It is **silent** after
   `SILENT_SECONDS` without a new beat.

All times are of this process's monotonic clock, from one look to another. An age is never computed from Redis'
clock, which jumps, and which goes on while Redis or this process stands still.

Example: three workers without a supervisor, looks each 250 ms. B is killed at 0.1 s. The looks at 0.25 .. 1.75 s see
no lifeline and the same beat: at 1.75 s there were seven of them, over 1.5 s, so B is absent. With a supervisor that is
there, its report comes first; with one that is gone too, B is absent after 10 s.

While no look was possible, the workers may not have been able to speak either. So the time of a gap counts for nothing
(`interrupt`). What was counted before it stays: were it forgotten, a pool in which something fails every few seconds
would never find its dead.

- Redis took longer than `GAP_SECONDS` to answer, the connection broke, or Redis was started again: the gap counts
  nothing, and no verdict falls until everybody had time to connect again.
- Redis answered at once and this process came late, because its machine is busy or stood still: lifelines did not break
  by that. Such a pause counts as `LATE_SECONDS`.

Each API process has verdicts of its own, by its own looks; only the leader acts on them. Suspicion is never stored.
"""

import math
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

LOOKS = 3
ABSENT_SECONDS = 1.5
"""Three times the longest that a killed lifeline took to come back (0.43 s of 90)."""
CAREFUL_SECONDS = 10.0
TOGETHER_SECONDS = 1.0
"""Losses within this time may have one cause."""
NUMBERS = 3
"""Below three workers, half of them is one."""
SILENT_SECONDS = 30.0
STALLED_SECONDS = 60.0
GAP_SECONDS = 1.0
LATE_SECONDS = 0.5
"""What the time before a look counts that came late: a lifeline needs so long to connect again."""
QUIET_SECONDS = 2.0
"""Without verdicts after a gap: a lifeline that lost its answer to a PING needs so long to connect again."""


class DeathCause(StrEnum):
    """Says what the evidence is."""

    ABSENT = "its lifeline is gone"
    SILENT = "it sent no beat, and its lifeline cannot be seen"
    STALLED = "it did nothing for too long, and its end was not seen"

    @property
    def lifeline_saves(self) -> bool:
        """Whether a lifeline that is seen in the last moment disproves the verdict."""
        return self is DeathCause.ABSENT


@dataclass(frozen=True)
class Sighting:
    """Holds what one look saw of a worker."""

    beat: bytes
    """Its last beat as Redis has it; only compared."""
    subscribed: bool
    """Whether its lifeline is there."""
    lifeline: bool = True
    """Whether it could be seen there at all."""
    host: str = ""
    supervisor: str | None = None
    supervised: bool = False
    """Whether its supervisor's lifeline is there."""
    restarted: bool = False
    """Whether Redis was started after its last beat."""
    idle_s: float = 0.0
    """Seconds since the process last got on, as its last beat said."""
    mark: bytes = b""
    """Changes when one of its rollouts gets on; only compared, and empty where there is no doubt."""


@dataclass(frozen=True)
class DeathVerdict:
    """One worker that is to be declared dead."""

    worker_id: str
    beat: bytes
    """The beat on which the verdict rests. Redis compares it once more."""
    cause: DeathCause
    host_lost: bool = False
    """Whether its host went, with other workers and their supervisor: then no rollout is the cause."""


@dataclass
class _Watched:
    """Holds what is remembered of one worker. All times are of this process's clock."""

    beat: bytes
    since: float
    """When this beat was first seen, less the time for which the process had not got on by then."""
    mark: bytes = b""
    """What its rollouts' mark was at the last look."""
    worked: float = -math.inf
    """When one of its rollouts was last seen to get on, while there was doubt."""
    absent_since: float | None = None
    looks: int = 0
    """Without its lifeline, in a row."""
    careful: bool = False
    """It went with others. This stays when the others are back, so that the slowest of them is not condemned."""
    host_lost: bool = False


class Verdicts:
    """Judges all workers, look by look."""

    def __init__(self, *, stalled_s: float = STALLED_SECONDS, clock: Callable[[], float] = time.monotonic) -> None:
        """Begins without suspicion."""
        self._stalled_s = stalled_s
        self._clock = clock
        self._watched: dict[str, _Watched] = {}
        self._last_look = math.nan
        self._interrupted = False
        self._quiet_until = -math.inf

    def interrupt(self, quiet_s: float = QUIET_SECONDS) -> None:
        """Takes the time between the last look and the next one out of all times, because nobody could be seen."""
        self._interrupted = True
        self._quiet_until = max(self._quiet_until, self._clock() + quiet_s)

    def judge(
        self, workers: Mapping[str, Sighting], *, took_s: float = 0.0, put_off_s: float = 0.0
    ) -> list[DeathVerdict]:
        """Takes one look at all workers into account."""
        now = self._clock()
        if took_s > GAP_SECONDS:
            self.interrupt()
        if self._interrupted:
            self._leave_out(now - self._last_look)
        elif now - self._last_look > GAP_SECONDS + put_off_s:
            # Nothing but this process was late, so it owes everybody that time, also of a silence that began before.
            self._quiet_until += now - self._last_look - LATE_SECONDS
            self._leave_out(now - self._last_look - LATE_SECONDS)
        self._last_look, self._interrupted = now, False
        self._watched = {worker_id: self._note(worker_id, seen, now) for worker_id, seen in workers.items()}
        absent = {w: since for w, watched in self._watched.items() if (since := watched.absent_since) is not None}
        if absent:
            self._note_losses(workers, absent)
        if now < self._quiet_until:
            return []
        verdicts = []
        for worker_id, seen in workers.items():
            cause = self._cause(seen, self._watched[worker_id], now)
            if cause is not None:
                verdicts.append(DeathVerdict(worker_id, seen.beat, cause, self._watched[worker_id].host_lost))
        return verdicts

    def _leave_out(self, seconds: float) -> None:
        """Takes seconds in which nobody could be seen out of all times."""
        for watched in self._watched.values():
            watched.since += seconds
            watched.worked += seconds
            if watched.absent_since is not None:
                watched.absent_since += seconds

    def _note(self, worker_id: str, seen: Sighting, now: float) -> _Watched:
        watched = self._watched.get(worker_id)
        mark, worked = (watched.mark, watched.worked) if watched is not None else (b"", -math.inf)
        # Without a mark before there is nothing to compare.
        if mark and seen.mark and mark != seen.mark:
            worked = now
        if watched is None or watched.beat != seen.beat:
            watched = _Watched(seen.beat, since=now - seen.idle_s)
        watched.mark, watched.worked = seen.mark, worked
        if seen.subscribed or not seen.lifeline:
            watched.absent_since, watched.looks, watched.careful, watched.host_lost = None, 0, False, False
            return watched
        watched.looks += 1
        if watched.absent_since is None:
            watched.absent_since = now
        return watched

    def _note_losses(self, workers: Mapping[str, Sighting], absent: Mapping[str, float]) -> None:
        """Marks what went together with others."""
        times = sorted(absent.values())
        orphans: dict[str, list[float]] = {}
        for worker_id, since in sorted(absent.items(), key=lambda item: item[1]):
            if _is_orphan(workers[worker_id]):
                orphans.setdefault(workers[worker_id].host, []).append(since)
        for worker_id, since in absent.items():
            watched, seen = self._watched[worker_id], workers[worker_id]
            watched.careful |= len(workers) >= NUMBERS and 2 * _near(times, since) >= len(workers)
            watched.host_lost |= _is_orphan(seen) and _near(orphans[seen.host], since) > 1

    def _cause(self, seen: Sighting, watched: _Watched, now: float) -> DeathCause | None:
        still = now - max(watched.since, watched.worked)
        if seen.subscribed:
            return DeathCause.STALLED if still >= self._stalled_s else None
        if not seen.lifeline:
            return DeathCause.SILENT if still >= SILENT_SECONDS else None
        if seen.supervised or seen.restarted:
            return DeathCause.STALLED if still >= self._stalled_s else None
        assert watched.absent_since is not None
        grace = CAREFUL_SECONDS if watched.careful or seen.supervisor is not None else ABSENT_SECONDS
        gone = watched.looks >= LOOKS and now - watched.absent_since >= grace
        return DeathCause.ABSENT if gone else None


def _near(times: Sequence[float], one: float) -> int:
    """Counts the sorted times that are at most `TOGETHER_SECONDS` from one of them, itself included."""
    return bisect_right(times, one + TOGETHER_SECONDS) - bisect_left(times, one - TOGETHER_SECONDS)


def _is_orphan(seen: Sighting) -> bool:
    return seen.supervisor is not None and not seen.supervised
