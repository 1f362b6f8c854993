"""What one worker process has: its store, tokenizers, clients, and the rollouts that it runs.

Everything here lives on the process's one event loop. The worker's id is new at each start of a process, so that a
restarted worker is never taken for the dead one. A beat each half second says that the loop runs, and brings back
what must be stopped.
"""

import asyncio
import logging
import os
import platform
import socket
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version

from rolloutpool_common.queue.publisher import Publisher
from rolloutpool_common.rendering import TokenizerCache
from rolloutpool_common.store import Claim, ClaimLost, SecretStore, Store, StoreError, new_token
from rolloutpool_common.store.workers import BEAT_SECONDS
from rolloutpool_worker.agents.termination import TERMINATION
from rolloutpool_worker.agents.tool_calls import AGENTS
from rolloutpool_worker.conversation.mask_plan import TrainerKinds
from rolloutpool_worker.drain import Drain
from rolloutpool_worker.policy import Breakers, Caller, Resolver
from rolloutpool_worker.process.webhooks import WebhookSender
from rolloutpool_worker.settings import WorkerSettings
from rolloutpool_worker.tools import TOOLS

__all__ = ["Runtime"]

_log = logging.getLogger(__name__)

Verify = Callable[[], Awaitable[None]]

REFILL_PAUSE = 0.05
"""Claims come in bursts; one look at the outboxes serves all of a burst."""


class Runtime:
    """The inside of a worker process, between `start` and `stop`."""

    def __init__(self, settings: WorkerSettings, *, isolated: bool = False) -> None:
        """`isolated`: a process that runs suspects, one at a time, and nothing else; `claim.lua` knows its name."""
        self.settings = settings.model_copy(update={"worker_slots": 1}) if isolated else settings
        self.is_isolated = isolated
        self.isolated_child = asyncio.Lock()
        """Held while this worker has a isolated process below it."""
        self.worker_id = f"{'isolated-' if isolated else ''}{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self.store = Store.open(
            settings.redis_url.get_secret_value(), max_connections=64, secrets=SecretStore.load(settings.secrets_file)
        )
        self.publisher = Publisher(self.store, settings.celery_url, per_message=settings.tickets_of)
        self.tokenizers = TokenizerCache(
            settings.tokenizer_cache_size,
            allow=settings.allowed_tokenizers or None,
            trust_remote_code_for=settings.trust_remote_code_for if settings.tokenizer_trust_remote_code else (),
        )
        self.caller = Caller(Resolver(settings.targets), timeout=settings.http_client_timeout)
        self.delivery = WebhookSender(self.store, self.caller)
        self.drain = Drain()
        self.kinds = TrainerKinds()
        self.breakers = Breakers()
        # By claim, not by rollout: a worker that was thought dead may have a rollout twice, the first time in vain.
        self._running: dict[str, tuple[asyncio.Task[object], Verify]] = {}
        self._tokens: set[str] = set()
        self._epoch = 0
        self._background: list[asyncio.Task[None]] = []
        self._refill = asyncio.Event()

    async def start(self) -> None:
        """Warms the tokenizers, then makes the worker known."""
        if not self.is_isolated:
            await asyncio.to_thread(self.tokenizers.warm, self.settings.tokenizers)
        await self._announce()
        self._background = [asyncio.create_task(self._beat(), name="beat")]
        if self.is_isolated:
            return
        self._background += [
            asyncio.create_task(self._pump(), name="pump"),
            asyncio.create_task(self.delivery.run(), name="delivery"),
        ]
        _log.info("worker %s: %d slots, tools %s", self.worker_id, self.settings.worker_slots, TOOLS.names())

    async def signalled(self) -> None:
        """On SIGTERM: drains. On a second one: gives everything back as it is, calls in flight and all."""
        if not self.drain.begun:
            return await self.shut()
        _log.warning("worker %s was told twice to end: it waits for none of %d", self.worker_id, len(self._running))
        self.drain.hurry()
        for task, _ in self._running.values():
            task.cancel()

    async def shut(self) -> None:
        """Drains: rollouts stop at their borders; what still runs after the drain time is cancelled."""
        if self.drain.begun:
            return
        self.drain.begin()
        self.delivery.stop()
        _log.info("worker %s drains %d rollouts", self.worker_id, len(self._running))
        tasks = [task for task, _ in self._running.values()]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=self.settings.drain_seconds)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late, timeout=5)

    async def stop(self) -> None:
        """Leaves; whatever it still had is requeued by the reconciler."""
        for task in self._background:
            task.cancel()
        for task in self._background:
            with suppress(asyncio.CancelledError):
                await task
        with suppress(StoreError):
            if not await self.store.workers.claims(self.worker_id):
                await self.store.workers.leave(self.worker_id)
        await self.caller.close()
        await self.store.close()

    @contextmanager
    def running(self, claim: Claim, verify: Verify) -> Iterator[None]:
        """The current task runs under this claim; it can be stopped from outside by the claim's token.

        `verify` makes sure that Redis has the claim and all that was journaled under it; raises `ClaimLost`.
        """
        task = asyncio.current_task()
        assert task is not None
        self._running[claim.token] = task, verify
        try:
            yield
        finally:
            del self._running[claim.token]

    @contextmanager
    def claiming(self) -> Iterator[str]:
        """The token of a claim that may be made as long as the context lasts."""
        token = new_token()
        self._tokens.add(token)
        try:
            yield token
        finally:
            self._tokens.remove(token)

    def more_waiting(self, claim: Claim) -> None:
        """A claim made room in the broker's window; where outboxes wait, it is filled again."""
        if claim.more_waiting:
            self._refill.set()

    async def _announce(self) -> None:
        await self.store.workers.announce(
            self.worker_id,
            host=socket.gethostname(),
            pid=os.getpid(),
            slots=self.settings.worker_slots,
            tools=[tool.definition for tool in TOOLS.values()],
            agents=AGENTS.names(),
            termination_strategies=TERMINATION.names(),
            tokenizers=self._warm(),
            versions={
                "python": platform.python_version(),
                **{name: version(name) for name in ("rolloutpool-worker", "transformers", "tokenizers", "celery")},
            },
        )

    def _warm(self) -> dict[str, dict[str, str]]:
        return {tokenizer.name: tokenizer.fingerprint.model_dump() for tokenizer in self.tokenizers.loaded()}

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            try:
                known, stop, epoch = await self.store.workers.beat(
                    self.worker_id, running=len(self._running), tokenizers=self._warm()
                )
                if not known:
                    _log.warning("worker %s was declared dead and announces itself again", self.worker_id)
                    await self._announce()
                for token in stop:
                    if token in self._running:
                        self._running[token][0].cancel()
                if epoch != self._epoch:
                    await self._verify()
                    self._epoch = epoch
            except StoreError as error:
                _log.warning("beat: %s", error.message)

    async def _verify(self) -> None:
        """Redis was started again, and may have lost its last second: lets it know what runs here and what does not."""
        for uid, token in (await self.store.workers.tokens(self.worker_id)).items():
            if token not in self._tokens:
                _log.warning("rollout %s: Redis forgot how it ended here; it is queued again", uid)
                await self.store.rollouts.abandon(uid, token)
        running = list(self._running.values())
        answers = await asyncio.gather(*(verify() for _, verify in running), return_exceptions=True)
        for (task, _), answer in zip(running, answers, strict=True):
            if isinstance(answer, ClaimLost):
                task.cancel()
            elif isinstance(answer, BaseException):
                raise answer

    async def _pump(self) -> None:
        while True:
            await self._refill.wait()
            await asyncio.sleep(REFILL_PAUSE)
            self._refill.clear()
            try:
                await self.publisher.pump()
            except StoreError as error:
                _log.warning("publishing: %s", error.message)
