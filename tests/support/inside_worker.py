"""A worker inside the test's own process: real sockets to the trainer, no Celery, and Redis or fakeredis.

From the claim to the finished record it does what a worker process does. A test can also stop it after any record of
the journal, read its log, and give it an agent of the test's own.
"""

import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

from tests.support.batches import NOWHERE, new_batch, status_of, uids_of

from rolloutpool_common.outcomes import FinishReason
from rolloutpool_common.protocol.batch import BatchStatus
from rolloutpool_common.protocol.journal import JournalRecord
from rolloutpool_common.protocol.result import RolloutResult, Sample
from rolloutpool_common.rendering import TokenizerCache
from rolloutpool_common.store import Claim
from rolloutpool_worker.agents.tool_calls import AGENTS
from rolloutpool_worker.conversation.conversation import Conversation
from rolloutpool_worker.rollout.services import Services
from rolloutpool_worker.rollout.ticket import run_rollout
from rolloutpool_worker.rollout.tokenizer_loads import TokenizerLoads
from rolloutpool_worker.settings import WorkerSettings
from rolloutpool_worker.tools import TOOLS, calculator

REPLAY = "tests.replay"

# As in a real worker: without the built-in tools a call's answer is a longer text, whatever test ran before.
calculator.set_delay(0, 0)
TOOLS.load_entry_points()


@AGENTS.named(REPLAY)
async def replay(conversation: Conversation) -> FinishReason:
    """Does what `metadata.steps` says: a list of one-key objects, the key being the conversation's method."""
    for step in conversation.spec.metadata["steps"]:
        ((name, given),) = step.items()
        match name:
            case "sample":
                turn = await conversation.sample(**given)
            case "run_tools":
                await conversation.run_tools(turn)
            case "say":
                await conversation.append_messages(given)
            case "edit":
                await conversation.edit(given)
    return FinishReason.STOP


class InsideWorker:
    """One worker's inside."""

    def __init__(self, redis_url: str, tokenizers: TokenizerCache, **settings: Any) -> None:
        self._redis_url = redis_url
        self.services = Services(WorkerSettings(redis_url=redis_url, **settings))
        self.services.tokenizers = tokenizers
        self.services.tokenizer_loads = TokenizerLoads(tokenizers, self.services.store, self.services.drain)
        self._settings = settings

    async def submit(self, *rollouts: dict[str, Any], **shared: Any) -> list[str]:
        """Submits a batch; returns the uids."""
        batch = new_batch(list(rollouts) or 1, shared={"server_url": NOWHERE, **shared})
        await self.services.store.batches.submit(batch)
        return uids_of(batch)

    async def take(self, uid: str) -> str:
        """Runs a rollout as a ticket would; what became of the ticket."""
        return (await run_rollout(self.services, uid)).outcome

    async def result(self, uid: str) -> RolloutResult:
        """The result of a rollout that has ended."""
        data = await self.services.store.rollouts.result(uid)
        assert data is not None, f"{uid} has not ended"
        return RolloutResult.model_validate_json(data)

    async def run(self, *rollouts: dict[str, Any], **shared: Any) -> list[RolloutResult]:
        """Submits a batch and runs it, one rollout after the other."""
        uids = await self.submit(*rollouts, **shared)
        for uid in uids:
            await self.take(uid)
        return [await self.result(uid) for uid in uids]

    async def run_one(self, **rollout: Any) -> RolloutResult:
        """As `run`, for a batch of one."""
        return (await self.run(rollout))[0]

    async def status(self, uid: str) -> BatchStatus:
        """Of the rollout's batch."""
        return await status_of(self.services.store, uid)

    def stop_after(self, records: int) -> None:
        """Makes this worker drain as soon as a journal has so many records."""
        rollouts = self.services.store.rollouts
        journal = rollouts.journal

        async def stopping(claim: Claim, journaled: Sequence[JournalRecord], **options: Any) -> Any:
            noted = await journal(claim, journaled, **options)
            if len(journaled) >= records:
                self.services.drain.begin()
            return noted

        setattr(rollouts, "journal", stopping)  # noqa: B010  a method, to mypy

    async def run_in_pieces(self, **rollout: Any) -> RolloutResult:
        """Runs one rollout on as many workers as its journal has records, each of which adds one."""
        (uid,) = await self.submit(rollout)
        return await self.take_in_pieces(uid)

    async def take_in_pieces(self, uid: str) -> RolloutResult:
        """Runs a submitted rollout likewise."""
        for records in range(1, 1000):
            async with inside_worker(self._redis_url, self.services.tokenizers, **self._settings) as worker:
                worker.stop_after(records)
                if await worker.take(uid) != "drained":
                    return await self.result(uid)
        raise AssertionError("it never ended")

    async def close(self) -> None:
        """Closes all connections."""
        await self.services.close()


@contextlib.asynccontextmanager
async def inside_worker(redis_url: str, tokenizers: TokenizerCache, **settings: Any) -> AsyncIterator[InsideWorker]:
    """A worker that is closed when the block ends."""
    worker = InsideWorker(redis_url, tokenizers, **settings)
    try:
        yield worker
    finally:
        await worker.close()


def sampled_with_mask_1(samples: Sequence[Sample]) -> list[int]:
    """All ids with mask 1, in order."""
    return [
        token
        for sample in samples
        for token, mask in zip(sample.response_ids, sample.response_mask, strict=True)
        if mask
    ]
