"""A part that blocks. Generated from `aio_client.py` by `make generate`; edit that file, not this one."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rolloutpool_common.capabilities.engines.attachments import RolloutAttachments
    from rolloutpool_trainer.client.doors import SyncDoor


class SyncEngineClient:
    """Holds what engines add to a client."""

    def attachments(self: "SyncDoor", uid: str) -> "RolloutAttachments":
        """Asks for what an engine has said of a rollout's ids besides log-probabilities. Takes the uid only.

        `rolloutpool_rl.attachments` puts it to the tokens of the rollout's samples.
        """
        from rolloutpool_trainer.capabilities.engines import calls

        return self.ask(calls.attachments(uid))
