"""What is said of rollouts, for asyncio. `sync_client.py` is generated from this file (`make generate`)."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rolloutpool_common.capabilities.grading.annotating import RolloutAnnotations
    from rolloutpool_trainer.client.aio_door import AsyncDoor


class AsyncGradedClient:
    """Holds what grading adds to a client."""

    async def annotations(self: "AsyncDoor", uid: str) -> "RolloutAnnotations":
        """Asks for the annotations of one rollout, also those per token. Takes the uid only."""
        from rolloutpool_trainer.capabilities.grading import calls

        return await self.ask(calls.annotations(uid))
