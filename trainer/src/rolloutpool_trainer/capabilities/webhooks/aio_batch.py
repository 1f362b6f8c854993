"""A batch whose results are pushed, for asyncio. `sync_batch.py` is generated from this file (`make generate`)."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rolloutpool_trainer.client.doors import AsyncDoor


class AsyncPushedBatch:
    """Holds what webhooks add to a batch."""

    batch_id: str
    _client: "AsyncDoor"

    async def retry_pushes(self) -> int:
        """Has the pool push now what the batch's webhook has not taken, also what was given up.

        Returns:
            How many results are due.
        """
        from rolloutpool_trainer.capabilities.webhooks import calls

        return (await self._client.ask(calls.retry_pushes(self.batch_id))).due
