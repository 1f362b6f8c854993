"""Says what a controller of the Osmosis wire v3.3 gets, and how a stored result becomes it.

The wire carries messages and a reward, and no tokens: the endpoint that sampled them belongs to the controller, which
has their ids. The reward is the rollout's grade, or its environment's score. The whole record is under
`GET /v1/rollouts/{rollout_id}`.

A failure of the pool's has many categories, and the wire has six (`_category`). A rollout that failed, expired or was
cancelled has no sample, so its messages can't be taken for data.
"""

from enum import StrEnum
from typing import Any

from pydantic import BaseModel, Field

from rolloutpool_common.outcomes import Boundary, Category, Failure, FailureKind, FinishReason, RolloutStatus
from rolloutpool_common.protocol.answer import Answer
from rolloutpool_common.protocol.environments import EnvironmentReport
from rolloutpool_common.protocol.health import Health
from rolloutpool_common.protocol.messages import Message
from rolloutpool_common.protocol.result import Alignment, Spans

WAIT_SECONDS = 30.0
"""A poll is answered after this time at the latest."""
LEASE_SECONDS = 120.0
"""Without a poll for so long, the rollout is ended."""
UNGRADED = "grade"
"""The label of a rollout that needs no reward; its value is `false`."""
LABEL = "label"
_AGENTS = (Boundary.AGENT, Boundary.ENVIRONMENT, Boundary.GRADER)
"""Whose failures the wire gives to the agent, as the SDK's own server does."""


class OsmosisStatus(StrEnum):
    """Says where a rollout stands, in the wire's words; `unknown` is the wire's too, and never used here."""

    QUEUED = "queued"
    RUNNING = "running"
    GRADING = "grading"
    SUCCESS = "success"
    FAILURE = "failure"
    CANCELLED = "cancelled"


class OsmosisCategory(StrEnum):
    """Why a rollout failed, in the wire's words."""

    TIMEOUT = "timeout"
    """The rollout's time is over, or that of its grader."""
    LEASE_EXPIRED = "lease_expired"
    VALIDATION_ERROR = "validation_error"
    """The job was wrong, or it was to be graded and got no reward."""
    HTTP_ERROR = "http_error"
    """The controller's endpoint could not be reached, or answered with an error."""
    AGENT_ERROR = "agent_error"
    """What the policy sampled can't be answered, or an environment or a grader failed."""
    INTERNAL_ERROR = "internal_error"


class OsmosisAccepted(Answer):
    """The rollout is durable (202)."""

    rollout_id: str
    status: OsmosisStatus = OsmosisStatus.QUEUED
    polling_lease_token: str
    """For the header of each poll. Only its digest is kept, so it can't be had again."""
    result_wait_timeout_sec: float = WAIT_SECONDS
    polling_lease_timeout_sec: float = LEASE_SECONDS


class OsmosisSample(BaseModel):
    """Holds what a rollout has produced."""

    messages: list[dict[str, Any]] = Field(default_factory=list)
    """The whole transcript; what is null in a message is left out."""
    label: str | None = None
    reward: float | None = None
    remove_sample: bool = False
    """Always false: a rollout that is no data fails."""
    metrics: dict[str, float] = Field(default_factory=dict)
    extra_fields: dict[str, Any] = Field(default_factory=dict)


class OsmosisResult(Answer):
    """The answer to a poll; before the end it has the status alone."""

    rollout_id: str
    status: OsmosisStatus
    sample: OsmosisSample | None = None
    err_message: str | None = None
    err_category: OsmosisCategory | None = None


class OsmosisCancelled(Answer):
    """Holds what became of each rollout that was to be cancelled."""

    dispositions: dict[str, str]
    """`cancelled_queued`, `cancelled_running`, or `not_found`: unknown, or ended already."""


class OsmosisRecord(BaseModel):
    """Holds what the answer has of a stored `RolloutResult`."""

    uid: str
    rollout_id: str
    labels: dict[str, str] = Field(default_factory=dict)
    status: RolloutStatus
    finish_reason: FinishReason
    failure: Failure | None = None
    messages: list[Message] = Field(default_factory=list)
    alignment: Alignment | None = None
    num_llm_calls: int = 0
    num_tool_calls: int = 0
    spans: Spans = Field(default_factory=Spans)
    environment: EnvironmentReport | None = None
    reward: float | None = None
    """Null also in records of versions that had no graders."""
    reward_parts: dict[str, float] = Field(default_factory=dict)


class OsmosisLifecycle(Answer):
    """Holds what the caller's rollouts do; the SDK's `wait_idle` waits until none is active."""

    accepting_rollouts: bool
    active_rollouts: int
    """Of this caller; at least 1 while Redis is away, because then nobody knows."""


class OsmosisHealth(Health):
    """`GET /health` with an API key: protocol v1's answer, and what the SDK's `wait_idle` reads."""

    instance_id: str
    """The same as `process_id`."""
    process_id: str
    """A name of the pool's data. It stays when processes or Redis start again, because no rollout is lost then."""
    lifecycle: OsmosisLifecycle


def running_result(rollout_id: str, status: RolloutStatus) -> OsmosisResult:
    """The answer for a rollout that has not ended."""
    return OsmosisResult(rollout_id=rollout_id, status=OsmosisStatus(status))


def to_osmosis(record: OsmosisRecord) -> OsmosisResult:
    """The answer for a rollout that has ended."""
    if record.status is RolloutStatus.CANCELLED:
        return OsmosisResult(rollout_id=record.rollout_id, status=OsmosisStatus.CANCELLED, err_message="cancelled")
    if record.status is RolloutStatus.EXPIRED:
        return _failed(record, OsmosisCategory.TIMEOUT, "the rollout exceeded its agent_timeout_sec")
    if record.failure is not None:
        return _failed(record, _category(record.failure), record.failure.message)
    sample = _sample(record)
    if sample.reward is None and UNGRADED not in record.labels:
        return _failed(
            record,
            OsmosisCategory.VALIDATION_ERROR,
            "the environment gave no reward, and the rollout was to be graded",
        )
    return OsmosisResult(rollout_id=record.rollout_id, status=OsmosisStatus.SUCCESS, sample=sample)


def _failed(record: OsmosisRecord, category: OsmosisCategory, message: str) -> OsmosisResult:
    return OsmosisResult(
        rollout_id=record.rollout_id, status=OsmosisStatus.FAILURE, err_message=message, err_category=category
    )


def _sample(record: OsmosisRecord) -> OsmosisSample:
    environment, spans, reward = record.environment, record.spans, record.reward
    if reward is None and environment is not None:
        reward = environment.reward
    return OsmosisSample(
        messages=[
            {key: value for key, value in message.wire().items() if value is not None} for message in record.messages
        ],
        label=record.labels.get(LABEL),
        reward=reward,
        metrics={
            "num_llm_calls": record.num_llm_calls,
            "num_tool_calls": record.num_tool_calls,
            "total_latency_ms": spans.total_ms,
            "llm_latency_ms": spans.llm_ms,
            "tool_latency_ms": spans.tools_ms,
            **({} if environment is None else environment.parts),
            **record.reward_parts,
        },
        extra_fields={"uid": record.uid, "finish_reason": record.finish_reason, "alignment": record.alignment},
    )


def _category(failure: Failure) -> OsmosisCategory:
    if failure.category is Category.LEASE_EXPIRED:
        return OsmosisCategory.LEASE_EXPIRED
    if failure.kind is FailureKind.REQUEST:
        return OsmosisCategory.VALIDATION_ERROR
    if failure.category in (Category.GRADE_LATE, Category.GROUP_GRADE_LATE):
        return OsmosisCategory.TIMEOUT
    if failure.kind is FailureKind.POLICY or failure.boundary in _AGENTS:
        return OsmosisCategory.AGENT_ERROR
    return OsmosisCategory.HTTP_ERROR if failure.boundary is Boundary.TRAINER else OsmosisCategory.INTERNAL_ERROR
