"""Every way in which a rollout can end, once.

A rollout ends in exactly one terminal `RolloutStatus`. A failure belongs to one `Boundary` and has one
`FailureKind`. The kind alone decides what a trainer may do with it: `policy` failures are data (reward 0 is
right), `request` failures are for the caller to fix, `infra` failures are never a sample.
"""

from enum import StrEnum
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict

from rolloutpool_common.protocol.drift import PromptDifference


class RolloutStatus(StrEnum):
    """Says where a rollout stands."""

    QUEUED = "queued"
    """Accepted and durable, no worker has it."""
    RUNNING = "running"
    """Claimed by a live worker."""
    GRADING = "grading"
    """Its conversation is complete and kept; its grader has not ended, or waits for the rest of its group."""
    COMPLETED = "completed"
    """Ended by the policy or by a limit; every mask is proved."""
    FAILED = "failed"
    """Ended by a failure, see `Failure`."""
    CANCELLED = "cancelled"
    """Ended by its caller, with its batch, or because its weights were too old (`FinishReason.STALE`)."""
    EXPIRED = "expired"
    """Ended by its deadline."""

    @property
    def terminal(self) -> bool:
        """Whether nothing can change this any more."""
        return self not in (RolloutStatus.QUEUED, RolloutStatus.RUNNING, RolloutStatus.GRADING)


class FinishReason(StrEnum):
    """Says what ended the conversation."""

    STOP = "stop"
    """The policy answered without tool calls (termination strategy `task_completion`)."""
    LENGTH = "length"
    """The policy's last turn was cut by its own `max_tokens` or context length."""
    MAX_TURNS = "max_turns"
    """`max_turns` model calls were made."""
    MAX_TOKENS = "max_tokens"
    """`max_tokens_total` sampled tokens were reached."""
    MAX_ASSISTANT_TURNS = "max_assistant_turns"
    """The hint `metadata.max_assistant_turns` was reached."""
    MAX_USER_TURNS = "max_user_turns"
    """The hint `metadata.max_user_turns` (turns fed back to the policy) was reached."""
    BUDGET_TOKENS = "budget_tokens"
    """The hint `metadata.budget_tokens` (prompt and sampled tokens of the context) was reached."""
    ENVIRONMENT = "environment"
    """The rollout's environment said that the episode is over."""
    STRATEGY = "strategy"
    """A termination strategy other than `task_completion` ended it. An unknown name is refused, and ignored on v1."""
    ERROR = "error"
    """It failed, and `failure` says why."""
    CANCELLED = "cancelled"
    """Its caller cancelled it, or its batch was cancelled."""
    DEADLINE = "deadline"
    """Its deadline passed."""
    STALE = "stale"
    """It was sampled by weights that were too old for its batch (`max_staleness`), and was dropped."""


class FailureKind(StrEnum):
    """Who can cause a failure, and so what it means for training."""

    REQUEST = "request"
    """The job itself was wrong; it fails the same way every time."""
    POLICY = "policy"
    """The model can cause it, so it is data: reward 0 is right."""
    INFRA = "infra"
    """The model cannot cause it: retried, then reported, never a sample with reward 0."""


class Boundary(StrEnum):
    """The part of the system at which a failure was seen."""

    REQUEST = "request"
    """The submitted job."""
    TOKENIZER = "tokenizer"
    """Loading the tokenizer, or comparing it with the trainer's."""
    TEMPLATE = "template"
    """Rendering messages with the chat template."""
    TOKENS = "tokens"
    """Comparing token ids, masks and the ledger."""
    TRAINER = "trainer"
    """Calling the trainer, and its replies."""
    AGENT = "agent"
    """What the policy sampled, as the agent saw it."""
    TOOL = "tool"
    """A tool that the policy called, where `on_tool_error` is `fail`."""
    ENVIRONMENT = "environment"
    """The session of the rollout's environment."""
    GRADER = "grader"
    """The rollout's grader, after its conversation was complete."""
    WORKER = "worker"
    """The worker process itself."""


class Category(StrEnum):
    """The failure's name on the wire. The first nine are protocol v1's own."""

    TOKENIZER_ERROR = "tokenizer_error"
    """The tokenizer can't be loaded, has no chat template, or is not allowed."""
    RATE_LIMITED = "rate_limited"
    """The trainer answered 429."""
    TRAINER_SERVER_ERROR = "trainer_server_error"
    """The trainer answered 5xx."""
    TRAINER_CLIENT_ERROR = "trainer_client_error"
    """The trainer answered 4xx."""
    TRAINER_ERROR = "trainer_error"
    """The trainer answered 3xx: redirects are not followed."""
    NETWORK_ERROR = "network_error"
    """There was no connection, the reply broke off, or it named another turn (`X-Turn-Key`)."""
    TOOL_ERROR = "tool_error"
    """The policy made more tool calls in one turn than `ROLLOUTPOOL_MAX_TOOL_CALLS`, and none was run (`policy`). Or a
    tool failed, and `on_tool_error` is `fail`."""
    INTERNAL_ERROR = "internal_error"
    """A defect, ours or a plug-in's; or a secret that the worker can't read."""
    VALIDATION_ERROR = "validation_error"
    """The job can't be run as it stands: the task or the grader's options are wrong, an engine does not take a sampling
    parameter, or a fork's prompt renders otherwise."""
    TRAINER_PROTOCOL_ERROR = "trainer_protocol_error"
    """The reply is not JSON (asked again where that is safe, because a gateway may have written it), lacks ids, has
    lengths that don't pair or an id outside the vocabulary, or is too large."""
    MASK_REFUSED = "mask_refused"
    """The trainer answered 422: it counts another number of new tokens than we sent."""
    TARGET_REFUSED = "target_refused"
    """The trainer's URL leads to a host that the pool may not call."""
    TEMPLATE_REFUSED = "template_refused"
    """The chat template can't continue this history, or cuts or measures text in which somebody typed a control token
    (`request`); or it can't continue what was sampled (`policy`)."""
    TOKENIZER_MISMATCH = "tokenizer_mismatch"
    """The trainer's prompt was made with another tokenizer or template; the message says which file differs."""
    MASK_IMPOSSIBLE = "mask_impossible"
    """A trainer that renders again counts fewer than zero new tokens; no mask can say that."""
    MASK_DISPROVED = "mask_disproved"
    """The trainer accepted a mask that its own prompt then contradicted: its session holds a wrong mask."""
    INJECTED_CONTROL_TOKEN = "injected_control_token"
    """The trainer made control tokens of typed text, and `on_injection` is `fail`."""
    DRIFT = "drift"
    """The trainer's prompt differs from what was sampled, and `on_drift` is `fail`."""
    UNVERIFIED = "unverified"
    """The trainer echoed no prompt ids, and the batch does not allow that."""
    AMBIGUOUS_TURN = "ambiguous_turn"
    """A worker died during a model call that must not be repeated."""
    REQUEST_CHANGED = "request_changed"
    """After a crash the next worker would ask the turn with another body, because its version differs for example; the
    rollout is retried."""
    ENVIRONMENT_ERROR = "environment_error"
    """The environment failed, did not answer in time, or answered nonsense."""
    ENVIRONMENT_LOST = "environment_lost"
    """The session ended with its worker, and can't be made again; or its server has forgotten it."""
    ENVIRONMENT_DIVERGED = "environment_diverged"
    """A fresh session answered journaled calls otherwise than the first one did."""
    HARNESS_LOST = "harness_lost"
    """The program that leads the rollout made no call for too long, and nobody ended its session."""
    LEASE_EXPIRED = "lease_expired"
    """Nobody asked for its result in time (the Osmosis wire)."""
    GRADER_ERROR = "grader_error"
    """The grader failed, was ended, or did not answer in time."""
    GRADE_INVALID = "grade_invalid"
    """What the grader returned is no grade: no finite number, or rewards that do not fit the tokens."""
    GRADE_LATE = "grade_late"
    """There was no grade when the grader's deadline passed."""
    GROUP_GRADE_LATE = "group_grade_late"
    """The group had no grade when its grader's deadline passed."""
    POISON = "poison"
    """Its worker died repeatedly, also when the rollout ran alone in a process."""
    QUARANTINED = "quarantined"
    """The admission check found the result inconsistent; the evidence is kept."""


class Failure(BaseModel):
    """One failure, attributed once."""

    model_config = ConfigDict(frozen=True)

    kind: FailureKind
    boundary: Boundary
    category: Category
    message: str
    """What happened, where, and what to do. Holds no prompt text and no secret."""
    retryable: bool
    """Whether another attempt could end differently."""
    http_status: int | None = None
    """The trainer's status code, where there was one."""
    turn: int | None = None
    """The turn (from 1) in which it happened; null before the first."""
    difference: PromptDifference | None = None
    """Where the trainer's prompt of that turn differs from the ledger, if that is what failed."""


class RolloutEnd(NamedTuple):
    """How a rollout ends."""

    status: RolloutStatus
    reason: FinishReason
    failure: Failure | None = None

    @classmethod
    def failed(cls, failure: Failure) -> "RolloutEnd":
        """The end of a rollout that has failed."""
        return cls(RolloutStatus.FAILED, FinishReason.ERROR, failure)
