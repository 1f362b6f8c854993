"""How one rollout is run: what a trainer may ask for, and the merged form that a worker gets.

1. `RunOptions` are the options that reach the worker as the trainer set them.
2. `RolloutOptions` adds what the pool decides from: a batch sets it once in `defaults` and again per rollout.
3. `RolloutSpec` is what remains after that: endpoint, tokenizer and ids are decided, so a worker guesses nothing.
"""

from enum import StrEnum
from typing import Annotated, Any

from pydantic import AfterValidator, AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field

from rolloutpool_common.composition import RolloutSpecFields, RunOptionsFields
from rolloutpool_common.protocol.checks import CallbackUrl, check_header_value
from rolloutpool_common.protocol.endpoint import EndpointOptions
from rolloutpool_common.protocol.environments import EnvironmentChoice
from rolloutpool_common.protocol.messages import Message
from rolloutpool_common.protocol.sampling import BatchSamplingParams


class MaskMode(StrEnum):
    """How long the `response_mask` is that goes to the trainer. The result's own masks don't depend on it."""

    AUTO = "auto"
    """The length that this trainer counts. It is learned from its replies, or both are tried if either is possible."""
    EXACT = "exact"
    """The number of ids between the last sampled token and the next generation point, for trainers that keep ids."""
    RERENDER = "rerender"
    """The difference in length of two renders, for trainers that render the whole history at each turn."""


def _said_before(value: object) -> object:
    """Reads what releases before 0.3 called `on_ambiguous_turn`: `fail`, or `retry`."""
    return {"fail": False, "retry": True}.get(value, value) if isinstance(value, str) else value


class OnDrift(StrEnum):
    """Says what to do when the trainer's prompt differs from the tokens that were sampled."""

    FORK = "fork"
    """End the sample and begin the next one with the trainer's prompt."""
    FAIL = "fail"
    """End the rollout with a failure."""


class OnInjection(StrEnum):
    """Says what to do when the trainer turned text of a tool or user into control tokens."""

    LABEL = "label"
    """Keep what the policy saw, and say so in `drift`."""
    FAIL = "fail"
    """End the rollout with a failure."""


class OnToolError(StrEnum):
    """Says what to do when a tool raises an error that is no `ToolFailed`."""

    MESSAGE = "message"
    """The policy reads that the tool failed, and goes on."""
    FAIL = "fail"
    """End the attempt with a failure that is no data; it is made again."""


class OnLimit(StrEnum):
    """How a conversation goes on that has become too long."""

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
    """Holds what the trainer says about its own tokenizer. The worker's must agree in each field that is given."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tokenizer_sha256: str | None = None
    """Of tokenizer.json."""
    template_sha256: str | None = None
    """Of the chat template."""
    transformers_version: str | None = None
    revision: str | None = None
    """The revision that the trainer loaded; the rollout's `tokenizer_revision` must say the same."""


class RunOptions(RunOptionsFields, EndpointOptions):
    """Holds what a trainer may set and a worker obeys as it stands."""

    tokenizer_revision: str | None = None
    """Revision of the tokenizer on the hub."""
    template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the chat template (`enable_thinking`, `date_string` …); must be what the trainer passes."""
    max_turns: int = Field(default=10, ge=1, le=100)
    """Model calls at the most."""
    max_tokens_total: int = Field(default=8192, ge=1, le=1_000_000)
    """Sampled tokens at the most; the prompt does not count."""
    metadata: dict[str, Any] = Field(default_factory=dict)
    """Anything; comes back with the result. The hints `max_assistant_turns`, `max_user_turns`, `budget_tokens` and
    `termination_strategy` in it are honoured."""
    tools: list[str] | None = None
    """Names of the workers' tools that the policy may call; null means all, and in an environment none: its session
    brings tools of its own."""
    environment: EnvironmentChoice | None = None
    """`{"name", "task", "seed"}`: where the policy acts, if tools without state are not enough."""
    agent: str = Field(default="tool_calls", min_length=1, max_length=128)
    """The agent loop, by its registered name."""
    idempotent: Annotated[bool, BeforeValidator(_said_before)] = Field(
        default=False, validation_alias=AliasChoices("idempotent", "on_ambiguous_turn")
    )
    """A turn that was in flight when its worker died may be asked again, under the same `Idempotency-Key`: the trainer
    gives its reply of then, or you accept that it samples this turn twice. A trainer may say so itself, by
    `X-Idempotent-Turns`. Without either the rollout fails."""
    restartable: bool = False
    """The trainer accepts a rollout that starts again from turn 1 under the same id."""
    allow_unverified: bool = False
    """Accept a trainer that echoes no prompt ids."""
    allow_untrained: bool = False
    """Accept a completed rollout without a trained token."""
    mask_mode: MaskMode = MaskMode.AUTO
    """Length of the `response_mask` on the wire: `exact`, `rerender`, or `auto`, which finds out what the trainer
    counts."""
    on_drift: OnDrift = OnDrift.FORK
    """What to do if the trainer's prompt is not what was sampled: `fork` into a further sample, or `fail`."""
    on_injection: OnInjection = OnInjection.LABEL
    """What to do if the trainer made control tokens of typed text: `label` it, or `fail`."""
    on_tool_error: OnToolError = OnToolError.MESSAGE
    """What to do if a tool raises an error that is no `ToolFailed`: `message`, the policy reads that it failed; or
    `fail`, the rollout fails as `infra` and is retried."""
    context: ContextLimit | None = None
    """`{"limit_tokens", "on_limit"}`: `truncate` or `summarise` at a limit; each edit opens a new sample."""
    declared_tokenizer: DeclaredTokenizer | None = None
    """The trainer's fingerprints (`tokenizer_sha256`, `template_sha256`, `transformers_version`, `revision`); a worker
    with other ones refuses the rollout."""
    replay_record: bool = True
    """Whether the result carries its journal, which a replay or a fork needs."""


class RolloutOptions(RunOptions):
    """Holds what may be set for all rollouts of a batch or for one. Unknown fields are faults."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    server_url: CallbackUrl | None = None
    """Base URL of the trainer's callback or of an engine; wins over the batch's `trainer`."""
    sampling_params: BatchSamplingParams = Field(default_factory=BatchSamplingParams)
    """How turns are sampled: those of protocol v1, and any other key (`top_k`, `seed` …), which reaches the trainer."""
    tokenizer_name: str | None = None
    """Hub name, or a directory on the workers; required here or in `defaults`."""
    callback_api_key: Annotated[str, AfterValidator(check_header_value)] | None = Field(
        default=None, max_length=4096, repr=False
    )
    """Bearer key of the callback or of the engine; printable ASCII."""
    deadline_seconds: float | None = Field(default=None, gt=0, le=604_800)
    """Seconds from acceptance, queueing included, after which the rollout is `expired`."""


class RolloutSpec(RolloutSpecFields, RunOptions):
    """One rollout as a worker runs it: defaults merged, endpoint and ids decided."""

    model_config = ConfigDict(frozen=True, hide_input_in_errors=True)

    rollout_id: str
    server_url: str
    messages: list[Message]
    sampling_params: BatchSamplingParams
    tokenizer_name: str
    callback_api_key: str | None = Field(default=None, repr=False)
    """Encrypted as it is stored; in plain text only in the worker that calls the trainer."""
    group: str | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    messages_only: bool = False
    """Came over the Osmosis wire: `server_url` is the base URL of OpenAI's chat completions, which answers without ids.
    So the result has messages and no samples."""
    v1: bool = False
    """Came over `POST /rollout`: nothing is retried, the calculator is lenient, unknown strategies are ignored."""

    @property
    def may_repeat(self) -> bool:
        """Whether a model call that may have been answered already may be made again."""
        # An engine keeps nothing of a turn, so the lost reply is in nobody's data.
        return self.token_in or self.idempotent
