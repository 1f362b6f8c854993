"""A part that blocks. Generated from `aio_client.py` by `make generate`; edit that file, not this one."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rolloutpool_common.capabilities.grading.annotating import RolloutAnnotations
    from rolloutpool_trainer.client.sync_door import SyncDoor


class SyncGradedClient:
    """Holds what grading adds to a client."""

    def annotations(self: "SyncDoor", uid: str) -> "RolloutAnnotations":
        """Asks for the annotations of one rollout, also those per token. Takes the uid only."""
        from rolloutpool_trainer.capabilities.grading import calls

        return self.ask(calls.annotations(uid))
