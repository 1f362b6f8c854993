"""Says what an error looks like on the wire.

The pool's own API answers `ErrorBody`. Protocol v1's paths (`/rollout`, `/tools`, `/health`) answer `V1ErrorBody`,
because their clients know FastAPI's shape. A rejected batch lists every `Fault`, not only the first.
"""

from pydantic import BaseModel, Field

from rolloutpool_common.protocol.answer import Answer


class Fault(BaseModel):
    """One reason why a request was rejected."""

    path: str
    """Where in the document, e.g. `rollouts[3].messages[0].role`."""
    message: str
    """What is wrong and what would be right."""


class ErrorDetail(Answer):
    """Holds what went wrong; only `message` is always there."""

    message: str
    """What happened and what to do."""
    faults: list[Fault] | None = None
    """Every reason for a rejection, at most 1000."""
    total_faults: int | None = None
    """How many reasons there are, those beyond the list included."""
    reasons: list[str] | None = None
    """What a pool that is not ready waits for."""
    batch_id: str | None = None
    """The batch that a conflict is with."""


class ErrorBody(Answer):
    """Every error of the pool's own API."""

    error: ErrorDetail


class V1ErrorBody(Answer):
    """Every error of protocol v1 but 422, whose `detail` is FastAPI's list."""

    detail: str = Field(examples=["no worker is alive; start one with `rolloutpool worker`"])
