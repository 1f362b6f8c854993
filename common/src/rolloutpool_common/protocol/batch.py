"""The batch API: what a trainer submits, and what it reads of a batch's state.

A batch is accepted whole or rejected whole. `defaults` hold for every rollout, a rollout's own fields win
(`sampling_params` and `metadata` key by key). `RolloutSpec` is the merged form: everything that a worker
needs to run one rollout, and nothing that it has to guess.
"""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator, model_validator

from rolloutpool_common.outcomes import RolloutStatus
from rolloutpool_common.protocol.messages import Message
from rolloutpool_common.protocol.rollout import check_rollout_id, check_server_url
from rolloutpool_common.protocol.sampling import BatchSamplingParams

__all__ = [
    "MAX_ROLLOUTS",
    "BatchAccepted",
    "BatchRequest",
    "BatchState",
    "BatchStatus",
    "ContextLimit",
    "DeclaredTokenizer",
    "Delivery",
    "Fault",
    "GroupPolicy",
    "LateRollouts",
    "MaskMode",
    "OnAmbiguousTurn",
    "OnDrift",
    "OnInjection",
    "OnLimit",
    "Priority",
    "Rates",
    "RolloutItem",
    "RolloutOptions",
    "RolloutSpec",
    "RolloutView",
    "TrainerPorts",
    "TrainerUrls",
    "check_callback_host",
]

MAX_ROLLOUTS = 10_000

Label = Annotated[str, StringConstraints(max_length=256)]
Labels = Annotated[dict[Label, Label], Field(max_length=32)]


def check_callback_host(value: str) -> str:
    """As `check_server_url`, and the URL must name a host."""
    url = check_server_url(value)
    if not url.partition("://")[2].split("/", 1)[0]:
        raise ValueError(f"server_url names no host: {value}")
    return url


class Priority(StrEnum):
    """Which of the three queues a batch waits in."""

    HIGH = "high"
    DEFAULT = "default"
    LOW = "low"


class MaskMode(StrEnum):
    """How long the `response_mask` is that goes to the trainer. The result's own masks don't depend on it."""

    AUTO = "auto"
    """What this trainer counts: learned from its replies, tried in turn where both are possible."""
    EXACT = "exact"
    """The ids between the last sampled token and the next generation point; for a trainer that keeps sampled ids."""
    RERENDER = "rerender"
    """The difference of two renders, which a trainer counts that renders the whole history each turn."""


class OnDrift(StrEnum):
    """What to do when the trainer's prompt is not what was sampled."""

    FORK = "fork"
    """Seal the sample, open the next one from the trainer's prompt."""
    FAIL = "fail"
    """End the rollout with a failure."""


class OnAmbiguousTurn(StrEnum):
    """What to do about a model call that was in flight when its worker died, where the trainer is not idempotent."""

    FAIL = "fail"
    """End the rollout with a failure that is no data."""
    RETRY = "retry"
    """Ask again; the trainer may sample this turn twice."""


class OnInjection(StrEnum):
    """What to do when the trainer made control tokens of text that a tool or user typed."""

    LABEL = "label"
    """Keep what the policy saw, and say so in `drift`."""
    FAIL = "fail"
    """End the rollout with a failure."""


class OnLimit(StrEnum):
    """How a conversation that has become too long goes on."""

    TRUNCATE = "truncate"
    """With its first user message and its last exchange."""
    SUMMARISE = "summarise"
    """With its first user message and the policy's own summary."""


class ContextLimit(BaseModel):
    """Edit the history when the context reaches a length; each edit opens a new training sample."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    limit_tokens: int = Field(ge=16, le=10_000_000)
    on_limit: OnLimit = OnLimit.TRUNCATE


class DeclaredTokenizer(BaseModel):
    """What the trainer says of its own tokenizer; the worker's must be the same where a field is given."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tokenizer_sha256: str | None = None
    """Of tokenizer.json."""
    template_sha256: str | None = None
    """Of the chat template."""
    transformers_version: str | None = None


class RolloutOptions(BaseModel):
    """What may be set for all rollouts of a batch or for one. Unknown fields are faults."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    server_url: str | None = None
    """Base URL of the trainer's callback; wins over the batch's `trainer`."""
    sampling_params: BatchSamplingParams = Field(default_factory=BatchSamplingParams)
    tokenizer_name: str | None = None
    """Hub name or a directory on the workers; required here or in `defaults`."""
    tokenizer_revision: str | None = None
    template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Passed to the chat template (enable_thinking, date_string …); must be what the trainer passes."""
    max_turns: int = Field(default=10, ge=1, le=100)
    max_tokens_total: int = Field(default=8192, ge=1, le=1_000_000)
    metadata: dict[str, Any] = Field(default_factory=dict)
    """Free; the hints max_assistant_turns, max_user_turns, budget_tokens, termination_strategy are honoured."""
    callback_api_key: str | None = Field(default=None, max_length=4096, repr=False)
    """Bearer key of the trainer's callback."""
    tools: list[str] | None = None
    """Names of the tools that the policy may call; null allows all that the workers have."""
    agent: str = Field(default="tool_calls", min_length=1, max_length=128)
    """The agent loop, by its registered name."""
    idempotent: bool = False
    """The trainer promises that asking the same turn again (same Idempotency-Key) is safe."""
    restartable: bool = False
    """The trainer accepts a rollout that starts again from turn 1 under the same id."""
    on_ambiguous_turn: OnAmbiguousTurn = OnAmbiguousTurn.FAIL
    allow_unverified: bool = False
    """Accept results of a trainer that echoes no prompt ids."""
    allow_untrained: bool = False
    """Accept completed rollouts without a single trained token."""
    mask_mode: MaskMode = MaskMode.AUTO
    on_drift: OnDrift = OnDrift.FORK
    on_injection: OnInjection = OnInjection.LABEL
    context: ContextLimit | None = None
    """Truncate or summarise at a token limit; null lets the context grow."""
    declared_tokenizer: DeclaredTokenizer | None = None
    """Refuse to run with another tokenizer, template or transformers than the trainer's."""
    deadline_seconds: float | None = Field(default=None, gt=0, le=604_800)
    """Seconds from acceptance until the rollout expires, queueing included."""

    @field_validator("server_url")
    @classmethod
    def _server_url(cls, value: str | None) -> str | None:
        return None if value is None else check_callback_host(value)


class RolloutItem(RolloutOptions):
    """One rollout, or a group of `n` rollouts that share their prompt."""

    messages: list[Message] = Field(min_length=1)
    rollout_id: str | None = None
    """The caller's name for it, unique in the batch; the pool's own uid where absent. With `n`, `-0` … are added."""
    group: str | None = Field(default=None, min_length=1, max_length=256)
    """Rollouts with the same group are sampled for one prompt and stay on one trainer port."""
    n: int = Field(default=1, ge=1, le=1024)
    """How many rollouts to run of this prompt; more than one makes them a group."""
    labels: Labels = Field(default_factory=dict)

    @field_validator("rollout_id")
    @classmethod
    def _rollout_id(cls, value: str | None) -> str | None:
        return None if value is None else check_rollout_id(value)


class TrainerUrls(BaseModel):
    """Callback endpoints, one by one; groups are spread over them in turn."""

    model_config = ConfigDict(extra="forbid")

    server_urls: list[str] = Field(min_length=1, max_length=1024)

    @field_validator("server_urls")
    @classmethod
    def _urls(cls, values: list[str]) -> list[str]:
        return [check_callback_host(value) for value in values]

    def urls(self) -> list[str]:
        """The endpoints in order."""
        return self.server_urls


class TrainerPorts(BaseModel):
    """Callback endpoints by rule: trainer worker i listens on `base_port + i`."""

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
        """The endpoints in order."""
        return [f"{self.scheme}://{self.host}:{self.base_port + i}" for i in range(self.workers)]


class Delivery(BaseModel):
    """Where finished results are pushed, besides being kept for polling."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    callback_url: str
    secret: str = Field(min_length=8, max_length=512, repr=False)
    """Signs each push (Standard Webhooks): `whsec_` + base64, or any text."""

    @field_validator("callback_url")
    @classmethod
    def _callback_url(cls, value: str) -> str:
        if not value.startswith(("http://", "https://")) or not value.split("://", 1)[1].split("/", 1)[0]:
            raise ValueError(f"callback_url must be an HTTP/HTTPS URL with a host, got: {value}")
        return value


class LateRollouts(StrEnum):
    """What becomes of a group's other rollouts once its verdict is known."""

    KEEP = "keep"
    """They run to their end and are delivered."""
    CANCEL = "cancel"
    """They are cancelled."""


class GroupPolicy(BaseModel):
    """When a trainer may take a group although it is not complete."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    size: int | None = Field(default=None, ge=1, le=MAX_ROLLOUTS)
    """How many rollouts each group must have in this request; null: whatever it has."""
    min_usable: int = Field(ge=1, le=MAX_ROLLOUTS)
    """So many completed rollouts make a group usable; a group that can't reach it any more is dropped."""
    late: LateRollouts = LateRollouts.KEEP

    @model_validator(mode="after")
    def _reachable(self) -> Self:
        if self.size is not None and self.min_usable > self.size:
            raise ValueError(f"min_usable {self.min_usable} can't be reached by groups of {self.size}")
        return self


class BatchRequest(BaseModel):
    """`POST /v1/batches`."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    rollouts: list[RolloutItem] = Field(min_length=1, max_length=MAX_ROLLOUTS)
    defaults: RolloutOptions = Field(default_factory=RolloutOptions)
    trainer: TrainerUrls | TrainerPorts | None = None
    """Where the policy is called; a rollout keeps its endpoint, a group shares one."""
    priority: Priority = Priority.DEFAULT
    run: str | None = Field(default=None, min_length=1, max_length=128)
    """Batches of one run follow each other; runs share the workers by weight. Null: a run of its own."""
    weight: int = Field(default=1, ge=1, le=100)
    """How many rollouts of this run start for each one of a run with weight 1, while both wait."""
    group: GroupPolicy | None = None
    labels: Labels = Field(default_factory=dict)
    delivery: Delivery | None = None


class RolloutSpec(BaseModel):
    """One rollout as a worker runs it: defaults merged, endpoint and ids decided."""

    model_config = ConfigDict(frozen=True, hide_input_in_errors=True)

    rollout_id: str
    server_url: str
    messages: list[Message]
    sampling_params: BatchSamplingParams
    tokenizer_name: str
    tokenizer_revision: str | None = None
    template_kwargs: dict[str, Any] = Field(default_factory=dict)
    max_turns: int = 10
    max_tokens_total: int = 8192
    metadata: dict[str, Any] = Field(default_factory=dict)
    callback_api_key: str | None = Field(default=None, repr=False)
    """Sealed as it is stored; in plain text only in the worker that calls the trainer."""
    tools: list[str] | None = None
    agent: str = "tool_calls"
    idempotent: bool = False
    restartable: bool = False
    on_ambiguous_turn: OnAmbiguousTurn = OnAmbiguousTurn.FAIL
    allow_unverified: bool = False
    allow_untrained: bool = False
    mask_mode: MaskMode = MaskMode.AUTO
    on_drift: OnDrift = OnDrift.FORK
    on_injection: OnInjection = OnInjection.LABEL
    context: ContextLimit | None = None
    declared_tokenizer: DeclaredTokenizer | None = None
    group: str | None = None
    labels: dict[str, str] = Field(default_factory=dict)

    @property
    def may_repeat(self) -> bool:
        """Whether a model call that may have been answered already may be made again."""
        return self.idempotent or self.on_ambiguous_turn is OnAmbiguousTurn.RETRY

    v1: bool = False
    """Came over `POST /rollout`: nothing is retried, the calculator is lenient, unknown strategies are ignored."""


class Fault(BaseModel):
    """One reason why a request was rejected."""

    path: str
    """Where in the document, e.g. `rollouts[3].messages[0].role`."""
    message: str
    """What is wrong and what would be right."""


class BatchState(StrEnum):
    """Where a batch stands."""

    RUNNING = "running"
    """Some of its rollouts have not ended."""
    COMPLETE = "complete"
    """All of its rollouts have ended."""


class BatchAccepted(BaseModel):
    """202: the batch is durable."""

    batch_id: str
    total: int
    rollouts: list[str]
    """The uid of each rollout, in the order of the request (`n` expanded)."""


class Rates(BaseModel):
    """How fast a batch goes, over its whole life so far."""

    rollouts_per_second: float
    sampled_tokens_per_second: float


class BatchStatus(BaseModel):
    """`GET /v1/batches/{id}`."""

    batch_id: str
    state: BatchState
    cancelled: bool
    """Whether it was cancelled as a whole; rollouts that had ended before keep their outcome."""
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
    sampled_tokens: int
    """Tokens that the policy sampled so far (mask 1)."""
    total_tokens: int
    """All tokens of all finished samples, prompts included."""
    turns: int
    delivery: dict[str, int]
    """Pushes by state (pending, delivered, dead); empty without `delivery`."""
    priority: Priority
    labels: dict[str, str]
    created_at: datetime
    finished_at: datetime | None


class RolloutView(BaseModel):
    """`GET /v1/rollouts/{id}`: state of one rollout; `result` once it has ended."""

    uid: str
    rollout_id: str
    batch_id: str
    index: int
    group: str | None
    status: RolloutStatus
    attempt: int
    worker: str | None
    turns: int
    """Turns journaled so far."""
    result: dict[str, Any] | None
