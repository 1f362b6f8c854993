"""Asking: what an attempt asks its policy with, equal in every turn."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from rolloutpool_common.protocol.options import RolloutSpec
from rolloutpool_worker.policy.breaker import Breakers
from rolloutpool_worker.policy.endpoint import ReplyLimits
from rolloutpool_worker.policy.turn_client import TurnClient
from rolloutpool_worker.policy.waits import RolloutWaits
from rolloutpool_worker.tracing import NO_TRACE, RolloutTrace


class BeforeCall(Protocol):
    """Is awaited before each model call; what it raises ends the attempt."""

    async def __call__(self, *, midway: bool = False, weights: str | None = None) -> bool:
        """Lets the call through, sooner or later; True where the policy may have other weights than these meanwhile.

        Then they are to be asked for again, and this too.
        """
        ...


async def ungated(*, midway: bool = False, weights: str | None = None) -> bool:
    """Lets each call through."""
    del midway, weights
    return False


@dataclass(frozen=True)
class Asking:
    """Holds whom an attempt asks, with what, and how often."""

    client: TurnClient
    spec: RolloutSpec
    """With its secrets in plain text. Nothing else has them: results are made from the spec that keeps them sealed."""
    uid: str
    attempt: int
    attempts: int
    """Calls of one turn at the most."""
    reply_limits: ReplyLimits
    pause: Callable[[float], Awaitable[None]]
    """Waits so many seconds between two calls, unless the worker drains."""
    breakers: Breakers
    waits: RolloutWaits | None = None
    trace: RolloutTrace = NO_TRACE
    before_call: BeforeCall = ungated
