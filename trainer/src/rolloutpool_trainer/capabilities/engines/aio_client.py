"""What engines have said, for asyncio. `sync_client.py` is generated from this file (`make generate`)."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rolloutpool_common.capabilities.engines.attachments import RolloutAttachments
    from rolloutpool_trainer.client.doors import AsyncDoor


class AsyncEngineClient:
    """Holds what engines add to a client."""

    async def attachments(self: "AsyncDoor", uid: str) -> "RolloutAttachments":
        """Asks for what an engine has said of a rollout's ids besides log-probabilities. Takes the uid only.

        `rolloutpool_rl.attachments` puts it to the tokens of the rollout's samples.
        """
        from rolloutpool_trainer.capabilities.engines import calls

        return await self.ask(calls.attachments(uid))
