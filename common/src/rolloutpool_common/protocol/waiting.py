"""Holds what rollouts wait for: the record that batches and rollouts show now, and a result carries at its end."""

from datetime import datetime
from enum import StrEnum

from pydantic import ConfigDict, Field

from rolloutpool_common.protocol.answer import Answer


class WaitsFor(StrEnum):
    """Who has to do something before a rollout goes on."""

    TRAINER = "trainer"
    """The trainer answered with an error, or not at all, and the turn is asked again; or a call takes long and goes on
    (`tries` is 0)."""
    TRAINER_PORT = "trainer_port"
    """Nobody can connect to the trainer's port; the rollout is in the queue until it is tried again."""
    WORKER = "worker"
    """No live worker takes rollouts, or none has what the rollout names."""
    ENVIRONMENT = "environment"
    """Its environment has no room for a session, or fails."""
    TOKENIZER = "tokenizer"
    """Workers are loading its tokenizer."""
    PAUSED = "paused"
    """Its run is paused."""
    SLOT = "slot"
    """All slots of the workers that can run it are taken."""
    HARNESS = "harness"
    """The program that leads it has made no call for a while."""
    GRADER = "grader"
    """Its conversation is complete; its grader has not ended, or needs the rest of its group."""


class Waiting(Answer):
    """Why work waits. It holds no text of prompts: what a trainer said is its JSON's `message` only."""

    model_config = ConfigDict(frozen=True)

    waits_for: WaitsFor
    endpoint: str | None = None
    """The trainer's address; null where the wait is for the pool."""
    status: int | None = None
    """The HTTP status of the last try; null where there was no answer."""
    message: str = Field(max_length=1_000)
    """What happened at the last try, or what is missing, in one line."""
    tries: int = 0
    """Tries of the rollout that failed, at its present turn; 0 where none has failed, and where the wait is for the
    pool."""
    rollouts: int = 1
    """How many of the batch wait for the same, with whatever worker or in the queue. It is 1 where a rollout says it of
    itself."""
    last_try: datetime | None = None
    """When the trainer was last asked. Null where the wait is for the pool, like the next."""
    next_try: datetime | None = None
    """While a call goes on: when this is said again."""
