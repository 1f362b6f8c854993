"""The batch API: what a trainer submits, and what it reads of a batch's state.

1. A batch is accepted whole or rejected whole, with every fault.
2. `defaults` hold for every rollout. A rollout's own fields win (`sampling_params` and `metadata` key by key).
3. The merged form is `RolloutSpec` (`options`): everything that a worker needs to run one rollout.
"""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, field_validator, model_validator

from rolloutpool_common.composition import BatchRequestFields, BatchStatusFields
from rolloutpool_common.outcomes import RolloutStatus
from rolloutpool_common.protocol.answer import Answer
from rolloutpool_common.protocol.checks import RolloutName, check_callback_host, check_label
from rolloutpool_common.protocol.endpoint import EndpointOptions
from rolloutpool_common.protocol.groups import GroupPolicy
from rolloutpool_common.protocol.limits import MAX_ROLLOUTS
from rolloutpool_common.protocol.messages import TextMessage
from rolloutpool_common.protocol.options import RolloutOptions
from rolloutpool_common.protocol.waiting import Waiting

Label = Annotated[str, StringConstraints(max_length=256), AfterValidator(check_label)]
Labels = Annotated[dict[Label, Label], Field(max_length=32)]


class Priority(StrEnum):
    """Says which of the three queues a batch waits in."""

    HIGH = "high"
    DEFAULT = "default"
    LOW = "low"


class RolloutItem(RolloutOptions):
    """One rollout, or a group of `n` rollouts that share their prompt."""

    messages: list[TextMessage] = Field(min_length=1)
    """The conversation so far; text only."""
    rollout_id: RolloutName | None = None
    """The caller's name for it, unique in the batch; null means the pool's uid. With `n`, `-0`, `-1` … are added."""
    group: str | None = Field(default=None, min_length=1, max_length=256)
    """Rollouts with the same group are sampled for one prompt, and stay on one endpoint."""
    n: int = Field(default=1, ge=1, le=1024)
    """How many rollouts to run of this prompt; more than one makes them a group."""
    labels: Labels = Field(default_factory=dict)
    """Yours, beside those of the batch."""


class TrainerUrls(EndpointOptions):
    """Endpoints as a list; groups are spread over them in turn."""

    model_config = ConfigDict(extra="forbid")

    server_urls: list[str] = Field(min_length=1, max_length=1024)

    @field_validator("server_urls")
    @classmethod
    def _urls(cls, values: list[str]) -> list[str]:
        return [check_callback_host(value) for value in values]

    def urls(self) -> list[str]:
        """List the endpoints in order."""
        return self.server_urls


class TrainerPorts(EndpointOptions):
    """Endpoints by rule: trainer worker i listens on `base_port + i`."""

    model_config = ConfigDict(extra="forbid")

    host: str = Field(min_length=1, max_length=255, pattern=r"^[^\s/:@]+$|^\[[0-9a-fA-F:.]+\]$")
    base_port: int = Field(default=8081, ge=1, le=65535)
    workers: int = Field(default=1, ge=1, le=1024)
    scheme: Literal["http", "https"] = "http"

    @model_validator(mode="after")
    def _ports_exist(self) -> Self:
        if self.base_port + self.workers - 1 > 65535:
            raise ValueError(f"base_port {self.base_port} + {self.workers} workers passes port 65535")
        return self

    def urls(self) -> list[str]:
        """List the endpoints in order."""
        return [f"{self.scheme}://{self.host}:{self.base_port + i}" for i in range(self.workers)]


class _BatchRequest(BaseModel):
    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    rollouts: list[RolloutItem] = Field(min_length=1, max_length=MAX_ROLLOUTS)
    """1 to 10,000 rollouts, each with messages and options."""
    defaults: RolloutOptions = Field(default_factory=RolloutOptions)
    """Options of every rollout. A rollout's own win; `sampling_params` and `metadata` are merged key by key."""
    trainer: TrainerUrls | TrainerPorts | None = None
    """Where the policy is called: `{"server_urls": […]}`, or `{"host", "base_port": 8081, "workers": n, "scheme"}` for
    the ports `base_port + i`; beside them `protocol`, `model` and the other options of an endpoint."""
    priority: Priority = Priority.DEFAULT
    """`high`, `default` or `low`."""
    run: str | None = Field(default=None, min_length=1, max_length=128)
    """The training run. Its batches start one after the other, and runs share the workers. Null: a run of its own."""
    weight: int = Field(default=1, ge=1, le=100)
    """How many rollouts of this run start for each one of a run with weight 1, while both wait."""
    lease_seconds: float | None = Field(default=None, ge=10, le=604_800)
    """The batch is cancelled when its owner has not read it for so long. Null: never."""
    group: GroupPolicy | None = None
    """When a group may be taken although some of its rollouts have not ended."""
    labels: Labels = Field(default_factory=dict)
    """Anything of yours, at most 32 without control characters; comes back with the batch and its results."""


class BatchRequest(BatchRequestFields, _BatchRequest):
    """`POST /v1/batches`."""


class BatchState(StrEnum):
    """Says where a batch stands."""

    RUNNING = "running"
    """Some of its rollouts have not ended."""
    COMPLETE = "complete"
    """All of its rollouts have ended."""


class CancelCause(StrEnum):
    """Why a batch was cancelled as a whole."""

    CALLER = "caller"
    """Its owner asked for it."""
    LEASE = "lease"
    """Its owner has not read it for `lease_seconds`."""
    PAUSE = "pause"
    """Its run was paused, and nobody resumed it in time."""


class BatchAccepted(Answer):
    """The answer to `POST /v1/batches`: the batch is durable."""

    batch_id: str
    total: int
    rollouts: list[str]
    """The uid of each rollout, in the order of the request (`n` expanded)."""


class BatchCancelled(Answer):
    """`DELETE /v1/batches/{id}`."""

    batch_id: str
    cancelled: int
    """Rollouts that this call ended; those that had ended before keep their outcome."""


class BatchPurged(Answer):
    """`DELETE /v1/batches/{id}?purge=true`: the batch's data is deleted."""

    batch_id: str
    purged: Literal[True] = True


class Rates(Answer):
    """How fast a batch goes, over its whole life so far."""

    rollouts_per_second: float
    sampled_tokens_per_second: float


class _BatchStatus(Answer):
    batch_id: str
    state: BatchState
    cancelled: bool
    """Whether it was cancelled as a whole; rollouts that had ended before keep their outcome."""
    cancel_cause: CancelCause | None = None
    """Why; null where it was not, and in batches of older versions."""
    total: int
    counts: dict[RolloutStatus, int]
    """How many rollouts are in each state; sums to `total`."""
    progress: float
    """Share of rollouts that have ended, 0…1."""
    rates: Rates
    alignment: dict[str, int]
    """How many completed rollouts per alignment: exact, forked, unverified."""
    drift: dict[str, int]
    """How many turns per drift label."""
    failures: dict[str, int] = Field(default_factory=dict)
    """How many rollouts per `kind:category` of their failure."""
    warnings: dict[str, int]
    """How many rollouts per warning."""
    tool_errors: dict[str, int] = Field(default_factory=dict)
    """How many calls of tools failed, per `NAME:TYPE` of tool and error."""
    waiting: list[Waiting] = Field(default_factory=list)
    """What rollouts of it wait for now: by endpoint, then what the pool lacks; empty while nothing waits."""
    sampled_tokens: int
    """Tokens that the policy sampled so far (mask 1)."""
    total_tokens: int
    """All tokens of all finished samples, prompts included."""
    turns: int
    priority: Priority
    labels: dict[str, str]
    created_at: datetime
    finished_at: datetime | None


class BatchStatus(BatchStatusFields, _BatchStatus):
    """`GET /v1/batches/{id}`."""
