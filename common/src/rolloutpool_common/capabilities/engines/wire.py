"""The fields that engines add to requests and results."""

from enum import StrEnum

from pydantic import BaseModel, Field

from rolloutpool_common.protocol.answer import is_none


class AttachmentKind(StrEnum):
    """Says what an engine may be asked for."""

    ROUTED_EXPERTS = "routed_experts"
    """To which experts a mixture-of-experts model has sent each id, in each layer."""
    SAMPLING_MASK = "sampling_mask"
    """Of which ids each sampled one was chosen, after top-k, top-p and min-p."""


class AttachmentsReport(BaseModel):
    """Holds what a result says of its attachments."""

    bytes: int
    """As they are stored."""
    missing: dict[AttachmentKind, int]
    """Of each kind that was asked for: in how many turns of this rollout some or all of it is missing."""


class AttachField(BaseModel):
    """What an endpoint is asked for besides ids."""

    attach: list[AttachmentKind] = Field(default_factory=list, max_length=len(AttachmentKind))
    """What the engine says of ids and is kept beside each result: `routed_experts`, `sampling_mask`."""


class AttachmentsField(BaseModel):
    """What a result says of its attachments."""

    attachments: AttachmentsReport | None = Field(default=None, exclude_if=is_none)
    """`bytes`, and of each kind in how many turns some is `missing`; left out where nothing was asked for."""
