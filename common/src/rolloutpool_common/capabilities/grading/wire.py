"""Grades as they travel: which grader a rollout asks for, what a grader says, and what a result says of the grade."""

from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, with_config

from rolloutpool_common.outcomes import Failure, FinishReason
from rolloutpool_common.protocol.reward import RewardGiver


class GraderChoice(BaseModel):
    """The grader of a rollout."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1, max_length=128)
    """As the workers announce it."""
    options: Any = None
    """Any JSON; the grader knows its meaning: a reference answer, for instance."""
    deadline_seconds: float = Field(default=600.0, gt=0, le=86_400)
    """From the end of the conversation, retries and waiting included. For a grader of groups: from the end of the first
    conversation of the group; it holds the group no longer."""
    retries: int = Field(default=3, ge=0, le=100)
    """Times that a grader which failed is asked again, after 1, 2, 4 … seconds."""


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True, slots=True)
class Grade:
    """Holds what a rollout is worth."""

    reward: float
    """Of the whole rollout."""
    parts: dict[str, float] = field(default_factory=dict)
    """What the reward is made of, for people to look at."""
    token_rewards: list[list[float]] | None = None
    """A list for each sample, as long as its `response_ids`; null where the grader judges the rollout as a whole."""


class GroupGrades(BaseModel):
    """The grades of a group, as they are kept until all its members are delivered."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    grades: dict[int, Grade] = Field(default_factory=dict)
    """By the member's index in the batch."""
    failure: Failure | None = None
    """Why there are none."""
    tries: int
    ms: float


class GradeReport(BaseModel):
    """Holds what a result says of its grade."""

    grader: str
    """Its name."""
    finish_reason: FinishReason
    """Why the conversation ended. The result's own reason is `error` where the grade failed."""
    tries: int = 0
    """How often the grader was asked; 0 where its deadline passed before."""
    ms: float | None = None
    """Wall time of the last try; null without one."""
    members: int | None = None
    """Of a grader of groups: how many conversations it saw; null for others, and without a grade."""


class GraderField(BaseModel):
    """Holds what a rollout may ask for."""

    grader: GraderChoice | None = None
    """`{"name", "options", "deadline_seconds", "retries"}`: what says what the rollout is worth."""


class GradeFields(BaseModel):
    """Holds what a result says besides its reward."""

    token_rewards: list[list[float]] | None = None
    """By the grader: a list for each sample, as long as its `response_ids`, or null."""
    grade: GradeReport | None = None
    """`grader`, `finish_reason` of the conversation, `tries`, `ms`, `members` of its group; null where it was not
    graded."""


class GraderNames(BaseModel):
    """Holds what a worker says of itself."""

    graders: list[str] = Field(default_factory=list)
    """Names of its graders."""


LONGEST_GRADING = 86_400.0
"""Seconds; `GraderChoice` takes no longer deadline."""


class OsmosisGrader(RewardGiver):
    """Holds what a rollout of the Osmosis wire may choose."""

    grader: GraderChoice | None = None
    """Who says what the rollout is worth, where it is to be graded."""

    def gives_reward(self) -> bool:
        """Whether it names a grader."""
        return self.grader is not None or super().gives_reward()

    def within(self, seconds: float | None) -> dict[str, Any]:
        """Chooses the grader with the time that the wire gives it."""
        if self.grader is None:
            return super().within(seconds)
        changed = {} if seconds is None else {"deadline_seconds": min(max(seconds, 0.001), LONGEST_GRADING)}
        return {**super().within(seconds), "grader": self.grader.model_copy(update=changed).model_dump(mode="json")}
