"""A part that blocks. Generated from `aio_batch.py` by `make generate`; edit that file, not this one."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rolloutpool_trainer.client.doors import SyncDoor


class SyncPushedBatch:
    """Holds what webhooks add to a batch."""

    batch_id: str
    _client: "SyncDoor"

    def retry_pushes(self) -> int:
        """Has the pool push now what the batch's webhook has not taken, also what was given up.

        Returns:
            How many results are due.
        """
        from rolloutpool_trainer.capabilities.webhooks import calls

        return (self._client.ask(calls.retry_pushes(self.batch_id))).due
