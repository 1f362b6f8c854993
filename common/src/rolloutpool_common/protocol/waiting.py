"""What rollouts wait for: the record that a batch's state shows now, and a result carries at its end."""

from datetime import datetime
from enum import StrEnum

from pydantic import ConfigDict, Field

from rolloutpool_common.protocol.answer import Answer

__all__ = ["Waiting", "WaitsFor"]


class WaitsFor(StrEnum):
    """Who has to do something before a rollout goes on."""

    TRAINER = "trainer"
    """The trainer answered with an error, or not at all; the same turn is asked again."""
    TRAINER_PORT = "trainer_port"
    """The trainer's port refuses connections; the rollout is in the queue until it is tried again."""


class Waiting(Answer):
    """Why work waits at one endpoint. It holds no text of prompts: what a trainer said is its JSON's `message` only."""

    model_config = ConfigDict(frozen=True)

    waits_for: WaitsFor
    endpoint: str
    """The trainer's address."""
    status: int | None = None
    """The HTTP status of the last try; null where there was no answer."""
    message: str = Field(max_length=1_000)
    """What happened at the last try, in one line."""
    tries: int
    """Tries of the rollout that reported this, at its present turn."""
    rollouts: int = 1
    """Rollouts that waited there in the process that reported this."""
    last_try: datetime
    next_try: datetime
