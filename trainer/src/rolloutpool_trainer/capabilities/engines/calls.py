"""Calls of a client about attachments."""

from rolloutpool_common.capabilities.engines.attachments import RolloutAttachments
from rolloutpool_trainer.client.calls import Call, read_model, resource


def attachments(uid: str) -> Call[RolloutAttachments]:
    """`GET /v1/rollouts/{uid}/attachments`; takes the pool's uid only."""
    return Call(method="GET", path=f"{resource('rollouts', uid)}/attachments", read=read_model(RolloutAttachments))
