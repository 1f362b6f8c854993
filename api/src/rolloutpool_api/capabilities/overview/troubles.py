"""Overview: what is wrong in the pool now, in a few trips to Redis, at most once a second for each kind of reader.

1. The newest batches are read as the list shows them. Those that run say what their rollouts wait for, as
   `GET /v1/batches/{id}` does; of the others it is seen whether all of their rollouts failed, with the message of the
   first one, and of the newest whether their trainer rendered the history in another way.
2. Equal waits of several batches are one trouble: with the same trainer, or for the same lack.
3. What `/readyz` says against the pool, or warns of, stands beside it. Whoever sees all batches also gets the figures
   of the pool, and what was given up.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Sequence

from rolloutpool_api.errors import NotReady
from rolloutpool_api.readiness import examine, silence
from rolloutpool_api.services import ApiServices
from rolloutpool_common.capabilities.overview.wire import PoolFigures, PoolOverview, Trouble
from rolloutpool_common.outcomes import RolloutStatus
from rolloutpool_common.protocol.batch import BatchState, BatchStatus
from rolloutpool_common.protocol.batch_list import BatchSummary
from rolloutpool_common.protocol.drift import NO_DRIFT
from rolloutpool_common.protocol.result import Alignment
from rolloutpool_common.protocol.rows import ENDED_FIELDS
from rolloutpool_common.protocol.waiting import Waiting, WaitsFor

LOOKED_AT = 100
"""Batches, the newest."""
MOST_RUNNING = 20
"""Of them, those that are asked what they wait for."""
MOST_ENDED = 10
"""Of them, those that have ended and are asked whether their rollouts forked."""
FRESH_SECONDS = 3600.0
"""A batch that failed before is history."""
CACHED_SECONDS = 1.0
NAMED = 50
"""Batches of one trouble."""
ADVICE = {
    WaitsFor.TRAINER: "Look at the trainer's own log; rollouts go on by themselves once it answers.",
    WaitsFor.TRAINER_PORT: "Start the trainer, or cancel the batch. Rollouts wait in the queue and take no slot.",
    WaitsFor.WORKER: "Start a worker that has what is named: `rolloutpool worker`.",
    WaitsFor.ENVIRONMENT: "Give the environment more room, or wait until sessions end.",
    WaitsFor.TOKENIZER: "Wait: it is being loaded. Start workers with it (ROLLOUTPOOL_TOKENIZERS).",
    WaitsFor.PAUSED: "Resume the run: `rolloutpool resume RUN`.",
    WaitsFor.SLOT: "Nothing is wrong. More workers would begin sooner.",
    WaitsFor.HARNESS: "Look whether the program still runs, and whether a runner is there.",
    WaitsFor.GRADER: "Wait; where it takes long, look at the grader.",
}
TITLES = {
    WaitsFor.TRAINER: "a trainer is slow",
    WaitsFor.TRAINER_PORT: "a trainer is down",
    WaitsFor.WORKER: "no worker can run them",
    WaitsFor.ENVIRONMENT: "an environment is full",
    WaitsFor.TOKENIZER: "a tokenizer is being loaded",
    WaitsFor.PAUSED: "a run is paused",
    WaitsFor.SLOT: "all slots are taken",
    WaitsFor.HARNESS: "programs make no calls",
    WaitsFor.GRADER: "grades are awaited",
}
FIRST = ("not_ready", "closed")
MESSAGE = list(ENDED_FIELDS).index("message")
HARMLESS = frozenset({WaitsFor.SLOT, WaitsFor.GRADER, WaitsFor.TOKENIZER, WaitsFor.HARNESS})
"""Waits that are a part of working."""


class Overview:
    """The overviews of one API process."""

    def __init__(self) -> None:
        self._made: dict[str | None, tuple[float, PoolOverview]] = {}
        self._locks: dict[str | None, asyncio.Lock] = {}

    async def read(self, services: ApiServices, whose: str | None) -> PoolOverview:
        """Looks at the pool for one owner, or (None) for whoever sees all."""
        # One reader looks, and the others wait for what it sees.
        async with self._locks.setdefault(whose, asyncio.Lock()):
            made = self._made.get(whose)
            if made is not None and time.monotonic() - made[0] < CACHED_SECONDS:
                return made[1]
            found = await self._look(services, whose)
            self._made[whose] = time.monotonic(), found
            return found

    async def _look(self, services: ApiServices, whose: str | None) -> PoolOverview:
        store = services.store
        listed = await store.batch_lists.read(whose, limit=LOOKED_AT)
        running = [batch for batch in listed.batches if batch.state is BatchState.RUNNING]
        ended = [batch for batch in listed.batches if batch.state is not BatchState.RUNNING and is_fresh(batch)]
        looked_at = [*running[:MOST_RUNNING], *ended[:MOST_ENDED]]
        asked = [store.batches.status(batch.batch_id, whose) for batch in looked_at]
        statuses = [status for status in await asyncio.gather(*asked) if status is not None]
        failed = await asyncio.gather(*(self._with_words(services, one) for one in failures(listed.batches)))
        troubles = [*await self._of_pool(services), *waits(statuses), *failed, *drifts(statuses)]
        pool = None
        if whose is None:
            pool = await self._figures(services)
            if letters := await store.reconciliation.dead_letters(1000):
                troubles.append(_dead(letters))
        troubles.sort(key=lambda one: (one.kind not in FIRST, one.kind == "warning", -one.rollouts))
        return PoolOverview(verdict=verdict(troubles, len(running)), troubles=troubles, running=len(running), pool=pool)

    @staticmethod
    async def _with_words(services: ApiServices, trouble: Trouble) -> Trouble:
        """Adds what was said of the first rollout of the newest batch; it may have been deleted meanwhile."""
        rows, _ = await services.store.rows.some(trouble.batches[0], [0])
        message = rows[0][MESSAGE] if rows and len(rows[0]) > MESSAGE else None
        return trouble.model_copy(update={"detail": f"{trouble.detail}: {message}"}) if message else trouble

    @staticmethod
    async def _of_pool(services: ApiServices) -> list[Trouble]:
        try:
            found = await examine(services)
        except NotReady as error:
            why = "; ".join(error.reasons) or error.message
            return [Trouble(kind="not_ready", title="the pool runs nothing", detail=why, todo="Mend this first.")]
        todo = "See docs/operations.md, Redis."
        troubles = [Trouble(kind="warning", title=warning, todo=todo) for warning in found.warnings]
        if found.submits == "closed":
            todo = "Mend this first; what was accepted goes on as soon as it can."
            troubles.append(Trouble(kind="closed", title="no work is taken", detail=found.why, todo=todo))
        elif found.why:
            troubles.append(Trouble(kind="warning", title=found.why, todo="See docs/operations.md, Sizes."))
        if found.quiet:
            troubles.append(
                Trouble(
                    kind="silent",
                    title=silence(found.quiet),
                    detail="They keep their rollouts until they are declared dead: by default after 60 s of silence.",
                    todo="Look whether their machine is there. Their rollouts then go on elsewhere by themselves.",
                    rollouts=sum(worker.running for worker in found.quiet),
                )
            )
        return troubles

    @staticmethod
    async def _figures(services: ApiServices) -> PoolFigures:
        store = services.store
        workers, depths, standing, measured = await asyncio.gather(
            store.workers.known(), store.outbox.queue_depths(), store.totals.read(), store.measures.read()
        )
        live = [worker for worker in workers if worker.alive]
        builds = Counter(_build(worker.versions) for worker in live)
        return PoolFigures(
            workers=len(live),
            draining=sum(worker.draining for worker in live),
            slots=sum(worker.slots for worker in live),
            running=sum(worker.running for worker in live),
            queues=depths,
            oldest_ticket_s=max(standing.oldest_ticket_s.values(), default=0.0),
            open=standing.open,
            paused_runs=standing.gauges.get("runs_paused", 0),
            redis_bytes=measured.redis.memory_bytes,
            redis_limit_bytes=measured.redis.memory_limit_bytes,
            builds=dict(builds.most_common()),
        )


def waits(statuses: Iterable[BatchStatus]) -> list[Trouble]:
    """Puts together what the rollouts of some batches wait for."""
    found: dict[tuple[WaitsFor, str | None, str], list[tuple[str, Waiting]]] = {}
    for status in statuses:
        for entry in status.waiting:
            # Trainers word their errors anew each time; a lack is named by its words alone.
            said = title_of(entry) if entry.endpoint is not None else entry.message
            found.setdefault((entry.waits_for, entry.endpoint, said), []).append((status.batch_id, entry))
    return [
        Trouble(
            kind="waits",
            title=title_of(entries[0][1]),
            detail=max((entry for _, entry in entries), key=lambda entry: entry.rollouts).message,
            todo=ADVICE[kind],
            rollouts=sum(entry.rollouts for _, entry in entries),
            waits_for=kind,
            endpoint=endpoint,
            batches=list(dict.fromkeys(batch_id for batch_id, _ in entries))[:NAMED],
        )
        for (kind, endpoint, _), entries in found.items()
    ]


def title_of(entry: Waiting) -> str:
    """Names a wait; one for a trainer by what the trainer did."""
    if entry.waits_for is not WaitsFor.TRAINER:
        return TITLES[entry.waits_for]
    if entry.status is not None:
        return f"a trainer answers {entry.status}"
    # Without a try that failed, a call goes on, and takes long.
    return TITLES[WaitsFor.TRAINER_PORT] if entry.tries else TITLES[WaitsFor.TRAINER]


def failures(batches: Sequence[BatchSummary]) -> list[Trouble]:
    """Puts together, by their commonest failure, batches of which every rollout has failed."""
    found: dict[str, list[BatchSummary]] = {}
    for batch in batches:
        if batch.counts.get(RolloutStatus.FAILED, 0) == batch.total and is_fresh(batch):
            name = max(batch.failures, key=lambda one: batch.failures[one], default="failed")
            found.setdefault(name, []).append(batch)
    return [
        Trouble(
            kind="failed",
            title=f"{counted(len(failed), 'batch', 'batches')} failed whole",
            detail=name,
            todo="Open a batch: its first lines say why, and its rollouts what was tried.",
            rollouts=sum(batch.total for batch in failed),
            batches=[batch.batch_id for batch in failed[:NAMED]],
        )
        for name, failed in found.items()
    ]


def drifts(statuses: Iterable[BatchStatus]) -> list[Trouble]:
    """Tells of batches whose trainer rendered the history in another way, so that rollouts were split."""
    found = [status for status in statuses if status.alignment.get(Alignment.FORKED)]
    if not found:
        return []
    number = sum(status.alignment[Alignment.FORKED] for status in found)
    labels = sorted({label for status in found for label in status.drift} - NO_DRIFT)
    return [
        Trouble(
            kind="drift",
            title=f"{counted(number, 'rollout was', 'rollouts were')} split: the trainer's prompts were other ones",
            detail=", ".join(labels),
            todo="Open a rollout's proof: it shows the first differing id. docs/masks.md says what each label means.",
            rollouts=number,
            batches=[status.batch_id for status in found[:NAMED]],
        )
    ]


def is_fresh(batch: BatchSummary) -> bool:
    """Whether a batch has ended so lately that it is no history."""
    return batch.age_s - batch.seconds < FRESH_SECONDS


def verdict(troubles: Sequence[Trouble], running: int) -> str:
    """Says all of it in a line."""
    if any(one.kind == "not_ready" for one in troubles):
        return f"The pool runs nothing: {troubles[0].detail}"
    bad = [one for one in troubles if one.kind != "warning" and one.waits_for not in HARMLESS]
    if not bad:
        runs = f"{counted(running, 'batch runs', 'batches run')}" if running else "nothing runs"
        return f"Nothing is wrong; {runs}."
    said: list[str] = []
    for kind, entries in _by_title(bad).items():
        number = sum(one.rollouts for one in entries)
        if entries[0].kind == "waits":
            subject = (
                f"{len(entries)} trainers are down"
                if len(entries) > 1 and kind == TITLES[WaitsFor.TRAINER_PORT]
                else kind
            )
            said.append(f"{subject}: {counted(number, 'rollout waits', 'rollouts wait')}")
        elif entries[0].kind == "closed":
            said.append(f"{kind}: {entries[0].detail}")
        else:
            said.append(kind)
    text = "; ".join(said[:3])
    return f"{text[0].upper()}{text[1:]}."


def counted(number: int, one: str, more: str) -> str:
    """Counts a noun: `1 rollout waits`, `2 rollouts wait`."""
    return f"{number:,} {one if number == 1 else more}"


def _by_title(troubles: Iterable[Trouble]) -> dict[str, list[Trouble]]:
    found: dict[str, list[Trouble]] = {}
    for one in troubles:
        found.setdefault(one.title, []).append(one)
    return found


def _dead(letters: Sequence[str]) -> Trouble:
    return Trouble(
        kind="dead_letters",
        title=f"{counted(len(letters), 'rollout was', 'rollouts were')} given up, because workers died of them",
        detail=letters[0],
        todo="Look at one (`rolloutpool show UID`), mend what kills workers, and requeue it.",
        rollouts=len(letters),
    )


def _build(versions: dict[str, str]) -> str:
    version, commit = versions.get("rolloutpool-worker", "unknown"), versions.get("commit", "")
    return f"{version} {commit[:8]}".strip()
