"""Environments as they travel: which one a rollout asks for, what a crash does to it, and what a result says of it."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, with_config

TOOL_SERVER = "tool_server_url"
"""The environment of a protocol v1 rollout whose tool server is called; its task is the URL. No batch can name it."""


class CrashEffect(StrEnum):
    """Says what the end of a worker does to the session of a rollout that goes on elsewhere."""

    STATELESS = "stateless"
    """Nothing: another session serves as well, and no call depends on those before it."""
    RESTARTABLE = "restartable"
    """A fresh session gets the journaled calls again, and must answer as the first one did."""
    SNAPSHOT = "snapshot"
    """A fresh session is made of the last snapshot, which is in the journal."""
    NONE = "none"
    """The session is lost, and the rollout fails (`environment_lost`)."""


class EnvironmentChoice(BaseModel):
    """The environment that a rollout runs in."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1, max_length=128)
    """As the workers announce it."""
    task: Any = None
    """Any JSON; the environment knows its meaning."""
    seed: int | None = Field(default=None, ge=0, lt=2**63)
    """Makes the session repeatable, where the environment uses it."""


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True, slots=True)
class EnvironmentStep:
    """Holds what an environment said to one call, or to one message, besides the text that the policy reads."""

    place: int
    """Which of the turn's calls it answers, from 0; 0 for a message."""
    reward: float | None = None
    """Of this step alone."""
    done: bool = False
    """Whether the episode is over."""
    info: dict[str, Any] = field(default_factory=dict)
    """Whatever else it said."""


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True, slots=True)
class EnvironmentFacts:
    """Holds what the journal keeps of an environment with an observation."""

    steps: tuple[EnvironmentStep, ...]
    """One for each call that reached the environment, in their order."""
    snapshot: str | None = None
    """The session after these steps, in base64; null unless the environment declares `snapshot`."""


class EnvironmentReport(BaseModel):
    """Holds what a result says of the rollout's environment."""

    name: str
    seed: int | None = None
    crash: CrashEffect
    steps: int = 0
    """Calls and messages that reached it."""
    step_rewards: list[float | None] = Field(default_factory=list)
    """Of each of them; null where the environment gave none."""
    step_turns: list[int] = Field(default_factory=list)
    """The turn, from 1, that each of them followed; empty in results of older versions."""
    done: bool = False
    """Whether it said that the episode is over."""
    reward: float | None = None
    """What it says the whole rollout is worth; null where it gave no score, or where the rollout did not complete."""
    parts: dict[str, float] = Field(default_factory=dict)
    """What the reward is made of."""
