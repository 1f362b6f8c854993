"""One worker process, from its start to its stop.

1. **Start.** It starts its lifeline, by which the reconciler sees that the process exists (`common/store/lifeline.py`),
   and loads the tokenizers that the settings name, and those that the live batches need. When Celery's consumer takes
   messages, it announces itself in Redis: tools, agents, slots, versions. From then on the API counts it, so an
   announcement means that work arrives.
2. **Beat.** Every half second its lifeline's thread sends a beat (`process.pulse`). The answer says four things:
   whether Redis knows it (if not, Redis lost that, and it announces itself again), whether it was declared dead, which
   claims it must stop running, and the epoch. One that was declared dead drops what it runs, which others have by now,
   and ends: its parent starts another, with an id of its own.
3. **Verify.** A new epoch means that Redis was started again and may have lost its last second. The process then tells
   Redis what runs here. At that moment, and every five seconds, it gives back claims that Redis still lists although
   nothing here runs them.
4. **Publish.** Each claim makes room in the broker's window; where outboxes wait, this process fills the window again.
   It also keeps the vocabularies of its tokenizers in Redis, for people who look at tokens (`process.vocabularies`).
5. **Drain.** On SIGTERM, rollouts stop at their next border and go back to the queue (`rolloutpool_worker.drain`).
   Its beats say so: it takes no more work. On a second SIGTERM nothing is awaited any more.
6. **Stop.** It waits for its isolated process (`process.isolation`), leaves Redis' list of workers, and ends its
   lifeline. If it still holds claims, it stays on the list, so that the reconciler finds them and queues their rollouts
   again.

An isolated worker (`process.trial`) warms no tokenizers, publishes nothing, starts no process and does nothing for
capabilities.
"""

import asyncio
import itertools
import logging
import os
import platform
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from rolloutpool_common.process.background import BackgroundTask, end_process
from rolloutpool_common.process.build import commit
from rolloutpool_common.process.logs import log_event
from rolloutpool_common.process.reporting import Reporter
from rolloutpool_common.protocol.offers import PLUGINS as KINDS
from rolloutpool_common.protocol.workers import WorkerRole
from rolloutpool_common.queue.publisher import Publisher
from rolloutpool_common.store import SCHEMA_SECONDS, ClaimLost, Store, StoreError
from rolloutpool_common.store.announcements import Announcement
from rolloutpool_common.store.lifeline import Lifeline
from rolloutpool_common.store.workers import BEAT_SECONDS, Beat, BeatAnswer
from rolloutpool_worker.agents.termination import TERMINATION
from rolloutpool_worker.agents.tool_calls import AGENTS
from rolloutpool_worker.composition import PLUGINS
from rolloutpool_worker.environments import ENVIRONMENTS
from rolloutpool_worker.environments.host import close_environments
from rolloutpool_worker.process.doubts import SharedDoubts
from rolloutpool_worker.process.isolation import IsolatedRuns
from rolloutpool_worker.process.pulse import Pulse
from rolloutpool_worker.process.vocabularies import VocabularyWriter
from rolloutpool_worker.rollout.services import Services, WorkerIdentity
from rolloutpool_worker.settings import WorkerSettings
from rolloutpool_worker.tools import TOOLS

_log = logging.getLogger(__name__)

REFILL_PAUSE = 0.05
"""Seconds between a claim and the look at the outboxes: claims come in bursts, and one look serves a whole burst."""
VERIFY_BEATS = 10
"""Beats between two looks at the claims that Redis has for this worker: two calls, with one small read per claim."""
CANCELLED_SECONDS = 5.0
"""How long rollouts that a drain has cancelled may take to give their claims back."""


@dataclass(frozen=True)
class Surroundings:
    """What a worker makes of its process and machine. Where several workers live in one process, they bring others."""

    lifeline: Callable[[str, str, Pulse], Lifeline] = Lifeline
    publisher: Callable[[Store, WorkerSettings], Publisher] = lambda store, settings: Publisher(
        store, settings.celery_url, per_message=settings.rollouts_per_ticket
    )
    isolated_runs: Callable[[Services], IsolatedRuns] = IsolatedRuns
    end: Callable[[], None] = end_process
    """Ends the process."""


OWN = Surroundings()
"""Those of a process that is the worker's own."""


class WorkerProcess:
    """The life of one worker process. Everything in it belongs to the process's one event loop."""

    def __init__(
        self,
        settings: WorkerSettings,
        *,
        role: WorkerRole = WorkerRole.SHARED,
        identity: WorkerIdentity | None = None,
        services: Services | None = None,
        around: Surroundings = OWN,
    ) -> None:
        """Prepares; connects nowhere."""
        self.services = services or Services(settings, role=role, identity=identity)
        self._end = around.end
        self._settings = self.services.settings
        self._store = self.services.store
        self._publisher = around.publisher(self._store, settings)
        opened = self.services.capabilities.items()
        self._parts = {name: one.part for name, one in opened if one.part is not None}
        """What capabilities do in this process, by their names."""
        self._epoch = 0
        self.pulse = Pulse(self.worker_id, lambda: self._store.rollouts.accepted_at)
        self._lifeline = around.lifeline(settings.redis_url.get_secret_value(), self.worker_id, self.pulse)
        self._condemned = False
        self._seen: bool | None = None
        """What the last self-test of the lifeline has shown."""
        self._beats = BackgroundTask("beat", self._end)
        self._publishing = BackgroundTask("publish", self._end)
        self._working = {name: BackgroundTask(name, self._end) for name in self._parts}
        self._isolated_runs = around.isolated_runs(self.services)
        self._isolating = BackgroundTask("isolated", self._end)
        self._reporter = Reporter(
            self._store.measures, component="worker", process=self.worker_id, version=version("rolloutpool-worker")
        )
        self._vocabularies = VocabularyWriter(
            self.services.tokenizers, self._store, self.worker_id, settings.token_pieces_bytes
        )
        self._writing = BackgroundTask("vocabularies", self._end)
        self._doubts = SharedDoubts(self.services.tokenizers.doubts, self._store.doubts, self.worker_id)

    @property
    def worker_id(self) -> str:
        """The name under which Redis knows this process."""
        return self.services.worker_id

    async def prepare(self) -> None:
        """Does what takes long and needs only a process: warms the tokenizers. Nobody hears of the worker yet."""
        services = self.services
        await services.store.check_schema()
        # Before the announcement: a worker that is listed and has no lifeline would look dead.
        await asyncio.to_thread(self._lifeline.start)
        # Before the first ticket. Where Redis is away, no ticket comes either, and the first beat's answer tells.
        with suppress(StoreError, TimeoutError):
            async with asyncio.timeout(SCHEMA_SECONDS):
                await self._doubts.exchange()
        if services.role is not WorkerRole.ISOLATED:
            # In a thread, because reading the files of a tokenizer would hold up the loop. An isolated worker loads
            # only what its suspects need.
            await asyncio.to_thread(services.tokenizers.warm, self._settings.tokenizers)
            room = self._settings.tokenizer_cache_size - len(services.tokenizers.loaded())
            await services.tokenizer_loads.warm_up(room, self._settings.warm_up_seconds)

    async def start(self) -> None:
        """Announces the worker and begins to beat; called once it takes work, does nothing where it shuts down."""
        if self.services.drain.begun:
            return
        try:
            await self._announce()
        except StoreError as error:
            # The first beat that Redis takes finds the worker unknown, and then announces it.
            log_event(_log, logging.WARNING, "worker not announced yet", worker_id=self.worker_id, error=error.message)
        self._beats.start(self._beat())
        self._reporter.start()
        if self.services.role is WorkerRole.ISOLATED:
            return
        self._publishing.start(self._publish())
        for name, part in self._parts.items():
            self._working[name].start(part.run())
        self._isolating.start(self._isolated_runs.run())
        if self._settings.token_pieces_mb:
            self._writing.start(self._vocabularies.run())
        slots = self._settings.worker_slots
        log_event(_log, logging.INFO, "worker started", worker_id=self.worker_id, slots=slots, tools=TOOLS.names())

    async def on_signal(self) -> None:
        """Handles a SIGTERM: the first one drains, the second one cancels what still runs, calls in flight and all."""
        if not self.services.drain.begun:
            return await self.drain()
        claims = self.services.claims
        log_event(_log, logging.WARNING, "second SIGTERM", worker_id=self.worker_id, cancelled=len(claims))
        self.services.drain.hurry()
        for claim in claims.current():
            claim.task.cancel()

    async def drain(self) -> None:
        """Stops all rollouts at their next border; cancels those that still run after the drain time."""
        if self.services.drain.begun:
            return
        # Before the list of tasks is made, so that no rollout begins after it.
        self.services.drain.begin()
        for part in self._parts.values():
            part.stop()
        tasks = [claim.task for claim in self.services.claims.current()]
        log_event(_log, logging.INFO, "drain begun", worker_id=self.worker_id, rollouts=len(tasks))
        start = time.monotonic()
        late: set[asyncio.Task[object]] = set()
        stuck: set[asyncio.Task[object]] = set()
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=self._settings.drain_seconds)
            for task in late:
                task.cancel()
            if late:
                # They write their release on the way out. Without the wait they would be found only by the reconciler.
                _, stuck = await asyncio.wait(late, timeout=CANCELLED_SECONDS)
        log_event(
            _log,
            logging.WARNING if stuck else logging.INFO,
            "drain ended",
            worker_id=self.worker_id,
            at_border=len(tasks) - len(late),
            cancelled=len(late) - len(stuck),
            still_running=len(stuck),
            seconds=round(time.monotonic() - start, 1),
        )

    async def stop(self) -> None:
        """Ends the background tasks, leaves Redis' list of workers unless it has claims, and closes all connections."""
        await self._isolated_runs.ended()
        # The beat ends before the worker leaves: a later one would find it unknown, and announce it again.
        for task in (self._beats, self._publishing, *self._working.values(), self._isolating, self._writing):
            await task.stop()
        await self.pulse.end()
        await self._reporter.stop()
        with suppress(StoreError):
            # A worker that still holds claims stays listed: the reconciler then declares it dead and requeues them.
            if not await self._store.workers.claims(self.worker_id):
                await self._store.workers.leave(self.worker_id)
        # After it has left the list: until then its lifeline says that it exists.
        await asyncio.to_thread(self._lifeline.stop)
        await self.services.close()
        await close_environments()

    async def _announce(self) -> None:
        plugins: dict[str, Any] = {kind.announced: PLUGINS[kind.kind].names() for kind in KINDS}
        about = Announcement(
            role=self.services.role,
            host=socket.gethostname(),
            pid=os.getpid(),
            slots=self._settings.worker_slots,
            tools=[tool.definition for tool in TOOLS.values()],
            agents=AGENTS.names(),
            termination_strategies=TERMINATION.names(),
            environments=ENVIRONMENTS.names(),
            tokenizers=self._warm_tokenizers(),
            own_tokenizers=self._settings.tokenizers,
            versions={
                "commit": commit(),
                "python": platform.python_version(),
                **{name: version(name) for name in ("rolloutpool-worker", "transformers", "tokenizers", "celery")},
            },
            **plugins,
        )
        supervisor = self.services.identity.supervisor
        await self._store.workers.announce(self.worker_id, about, supervisor=supervisor, lifeline=self._note_lifeline())

    def _note_lifeline(self) -> bool:
        """Looks whether the lifeline is seen, and says in the log when that changes."""
        seen = self._lifeline.seen
        # On a busy machine the first test may come after the announcement; until then beats alone speak.
        if self._lifeline.tested and seen is not self._seen:
            if seen and self._seen is False:
                _log.info("worker %s: its lifeline is seen again", self.worker_id)
            elif not seen:
                _log.warning(
                    "worker %s: its lifeline is not seen. A death that its parent cannot report is then noticed by "
                    "missing beats, after 30 s. Allow its account our channels (ACL in docs/operations.md), or look "
                    "for a proxy in between",
                    self.worker_id,
                )
            self._seen = seen
        return seen

    def _warm_tokenizers(self) -> dict[str, dict[str, str]]:
        return {tokenizer.name: tokenizer.fingerprint.model_dump() for tokenizer in self.services.tokenizers.loaded()}

    async def _beat(self) -> None:
        for number in itertools.count(1):
            told = Beat(
                running=len(self.services.claims),
                tokenizers=self._warm_tokenizers(),
                lifeline=self._note_lifeline(),
                loading=self.services.tokenizers.loading(),
                unloaded=self.services.tokenizer_loads.waiting(),
                draining=self.services.drain.begun,
            )
            self.pulse.turn(told)
            with suppress(TimeoutError):
                async with asyncio.timeout(BEAT_SECONDS):
                    answer = await self.pulse.answers.get()
                    try:
                        await self._obey(answer, number)
                    except StoreError as error:
                        _log.warning("beat: %s", error.message)

    async def _obey(self, answer: BeatAnswer, number: int) -> None:
        """Does what the answer to a beat asks for; `number` counts the beats."""
        if answer.condemned:
            return self._end_condemned()
        if not answer.known:
            _log.warning("Redis does not know worker %s, which announces itself again", self.worker_id)
            await self._announce()
        for token in answer.stop:
            self.services.claims.cancel(token)
        if answer.suspects:
            self.services.suspects_wait.set()
        for part in self._parts.values():
            part.heard(answer.notes)
        await self.services.kinds.share()
        await self._doubts.share(answer.epoch, answer.doubts)
        if answer.epoch != self._epoch:
            await self._verify_claims()
            # Noted only now: if Redis fails in between, the next beat verifies again.
            self._epoch = answer.epoch
        elif number % VERIFY_BEATS == 0:
            await self._abandon_unheld("this worker has its claim, and nothing here runs it")

    def _end_condemned(self) -> None:
        """Drops all claims, which others have by now, and ends the process."""
        if self._condemned:
            return
        self._condemned = True
        claims = self.services.claims
        log_event(_log, logging.CRITICAL, "worker was declared dead", worker_id=self.worker_id, dropped=len(claims))
        for claim in claims.current():
            claim.task.cancel()
        self._end()

    async def _verify_claims(self) -> None:
        """Makes Redis and this process agree about what runs here, after Redis was started again."""
        await self._abandon_unheld("Redis forgot how it ended here")
        # All of them are asked, and none waits for another: a claim that is lost must not keep the others from being
        # restored.
        running = self.services.claims.current()
        answers = await asyncio.gather(*(claim.verify() for claim in running), return_exceptions=True)
        for claim, answer in zip(running, answers, strict=True):
            if isinstance(answer, ClaimLost):
                claim.task.cancel()
            elif isinstance(answer, BaseException):
                raise answer

    async def _abandon_unheld(self, why: str) -> None:
        """Gives back the claims that Redis has for this worker and that nothing here holds; `why` is for the log.

        A rollout that ends between the two reads is not harmed: Redis has another token then, or none, so the script
        refuses.
        """
        for uid, token in (await self._store.workers.tokens(self.worker_id)).items():
            held = token in self.services.claims
            if not held and await self._store.rollouts.abandon(uid, token, self.services.role):
                log_event(_log, logging.WARNING, "rollout abandoned", rollout_uid=uid, why=why)

    async def _publish(self) -> None:
        refill = self.services.refill
        while True:
            await refill.wait()
            await asyncio.sleep(REFILL_PAUSE)
            # After the pause, so that one look serves all claims until now; before the look, so that a claim during it
            # causes another.
            refill.clear()
            try:
                await self._publisher.pump()
            except StoreError as error:
                _log.warning("publishing: %s", error.message)
