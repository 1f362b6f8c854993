"""RolloutTalk: what capabilities see of a rollout that this process runs (`capability.Talk`)."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, suppress
from typing import TypeVar

from rolloutpool_common.process.logs import bind_log
from rolloutpool_common.protocol.result import RolloutResult
from rolloutpool_common.protocol.waiting import Waiting
from rolloutpool_common.store import Claim, StoreError
from rolloutpool_worker.conversation.store_retry import retry_store
from rolloutpool_worker.rollout.attempt_log import log_end
from rolloutpool_worker.rollout.services import Services

T = TypeVar("T")


class RolloutTalk:
    """One claimed rollout; made for those that use a capability."""

    def __init__(self, services: Services, claim: Claim, attachments: Callable[[RolloutResult], bytes]) -> None:
        self._services = services
        self.claim = claim
        self.store = services.store
        self.attachments = attachments

    def running(self, verify: Callable[[], Awaitable[None]]) -> AbstractContextManager[None]:
        """Registers the current task as the one that runs the rollout, until the block ends."""
        return self._services.claims.running(self.claim, verify)

    async def retry(self, call: Callable[[], Awaitable[T]]) -> T:
        """Calls the store until it answers, or the process shuts down."""
        return await retry_store(self._services.drain, self.claim.uid, call)

    async def wait(self, waiting: Waiting) -> None:
        """Notes what the rollout waits for."""
        # It is for people to look at, and nothing depends on it.
        with suppress(StoreError):
            await self.store.waits.note(self.claim.uid, self.claim.attempt, waiting, batch=False, counted=False)

    def publish_soon(self) -> None:
        """Has the process look at the outboxes."""
        self._services.refill.set()

    def delivered(self, result: RolloutResult) -> None:
        """Logs the end of another rollout, under its own name."""
        bind_log(rollout_uid=result.uid)
        log_end(result)
        bind_log(rollout_uid=self.claim.uid)
