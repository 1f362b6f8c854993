"""Says what operators ask of a pool: dead letters, and whether workers reach a trainer's callback ports."""

from pydantic import BaseModel, Field, field_validator

from rolloutpool_common.composition import DeadLettersFields
from rolloutpool_common.protocol.answer import Answer
from rolloutpool_common.protocol.checks import check_callback_host


class DeadLetters(DeadLettersFields, Answer):
    """`GET /v1/dead-letters`: uids of what was given up, newest first."""

    rollouts: list[str]
    """Rollouts that killed the workers that ran them; `GET /v1/rollouts/{uid}` has the failure of each."""


class PreflightRequest(BaseModel):
    """`POST /v1/preflight`: callback endpoints to try."""

    server_urls: list[str] = Field(min_length=1, max_length=1024)

    @field_validator("server_urls")
    @classmethod
    def _urls(cls, values: list[str]) -> list[str]:
        return [check_callback_host(value) for value in values]


class EndpointCheck(Answer):
    """Holds what a worker found at one endpoint."""

    server_url: str
    ok: bool
    """Whether anything answered."""
    detail: str
    """The status of `GET /health`, or why there was none."""
    ms: float
    """How long the answer took, milliseconds."""


class Preflight(Answer):
    """The answer to a `PreflightRequest`: what one worker found. Another worker may see another network."""

    worker: str
    """The worker that tried."""
    endpoints: list[EndpointCheck]
    """One check per URL, in the order of the request."""
