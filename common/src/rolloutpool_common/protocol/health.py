"""Whether the pool answers and can work: `/health` of protocol v1, `/livez` and `/readyz`."""

from typing import Literal

from pydantic import Field

from rolloutpool_common.protocol.answer import Answer


class Health(Answer):
    """`GET /health`, as protocol v1 has it."""

    status: Literal["healthy"] = "healthy"
    service: Literal["rollout-server"] = "rollout-server"


class Alive(Answer):
    """`GET /livez`: this API process answers."""

    status: Literal["alive"] = "alive"


class Ready(Answer):
    """`GET /readyz`: what is accepted will run, and `submits` says whether more is accepted.

    A pool that is not ready answers 503 with reasons.
    """

    status: Literal["ready"] = "ready"
    redis_ms: float
    """One round trip to Redis."""
    workers: int
    """Live worker processes."""
    submits: Literal["open", "limited", "closed"] = "open"
    """Whether more is accepted: `limited` refuses some callers (429), and `closed` all of them (429, 503)."""
    warnings: list[str] = Field(default_factory=list)
    """What puts accepted work or callers at risk: settings of Redis, a file of keys that can't be read, deltas that are
    doubted."""
