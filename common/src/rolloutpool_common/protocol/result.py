"""The result of a rollout: one record, which is stored, polled, streamed and pushed.

`samples` are what the token ledger gives (`tokens/samples.py`): `response_mask[i]` is 1 exactly where
`response_ids[i]` was sampled by the policy. All lists of a sample's response have the same length [R]. A failed rollout
delivers the turns whose masks were proved before the failure. Field meanings are the same for every way of delivery.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any, Literal

from pydantic import BaseModel, Field

from rolloutpool_common.composition import RolloutResultFields
from rolloutpool_common.outcomes import Failure, FinishReason, RolloutStatus
from rolloutpool_common.protocol.drift import PromptDifference
from rolloutpool_common.protocol.environments import EnvironmentReport
from rolloutpool_common.protocol.messages import Message
from rolloutpool_common.protocol.replay import ReplayRecord
from rolloutpool_common.protocol.waiting import Waiting
from rolloutpool_common.tokens.arrays import sliced
from rolloutpool_common.tokens.samples import Sample, SampleSegment

__all__ = [
    "Alignment",
    "ResultItem",
    "ResultPage",
    "RolloutResult",
    "Sample",
    "SampleSegment",
    "Spans",
    "ToolTime",
    "TurnSummary",
    "encode_result",
]

RESULT_SCHEMA: Literal[1] = 1
_LISTS = ("prompt_ids", "response_ids", "response_mask", "response_logprobs")
"""A sample's fields with a value per token."""


class Alignment(StrEnum):
    """How well it is proved that the tokens are what the policy saw."""

    EXACT = "exact"
    """Every echoed prompt agreed with the ledger."""
    FORKED = "forked"
    """A prompt disagreed; the rollout was split into samples, each true to what the policy saw."""
    UNVERIFIED = "unverified"
    """The trainer echoed no prompt ids, and the batch allows that."""


class StopToken(StrEnum):
    """How a turn's end shows in its ids. A policy whose stop token is always withheld never learns to stop."""

    SAMPLED = "sampled"
    """The last sampled id ends a turn."""
    WITHHELD = "withheld"
    """The policy stopped, but the trainer did not return the id that ended the turn."""
    ABSENT = "absent"
    """The turn was cut by length; nothing ended it."""


@dataclass(frozen=True, slots=True)
class ToolTime:
    """One call of a tool, as its turn reports it."""

    name: str
    """As the policy called it, at most 64 characters; there need not be such a tool."""
    ms: float
    """Wall time, waiting for an isolated tool's place included."""
    ok: bool
    """Whether the policy got a result; false where what it reads begins with `Error:`."""
    error: str | None = None
    """What ended the call without a result: the type of the error that the tool raised, `TimeoutError`, or how its
    process ended (`SIGSEGV`). Null where the tool answered, refused or was not run, and in older results."""


class TurnSummary(BaseModel):
    """Holds what happened in one model call."""

    turn: int
    """From 1."""
    prompt_tokens: int
    """Length of the prompt that the policy saw."""
    sampled_tokens: int
    """How many tokens it sampled."""
    mask_sent: int | None
    """Length of the response_mask that was sent; null if the mask was null."""
    finish_reason: str | None
    """The trainer's word for why sampling stopped."""
    drift: str
    """How the echoed prompt differs from the ledger: a label, `none`, or `edited` (the agent edited the history)."""
    tool_calls: int
    """How many tools it called."""
    stop: StopToken
    """Whether the token that ends a turn was `sampled`, `withheld` by the server, or `absent` (cut by length)."""
    policy_version: str | None = None
    """The trainer's name for the weights that sampled it."""
    start_ms: float | None = None
    """From the rollout's acceptance to the start of the call, wall milliseconds."""
    llm_ms: float | None = None
    """Wall time of the call, with all its repetitions."""
    aborts: int = 0
    """How often an engine stopped in the middle of it, for a weight update, and went on."""
    resampled: bool = False
    """Whether a worker died while an engine sampled it, so that this is another reply."""
    tools: list[ToolTime] = Field(default_factory=list)
    """`name`, `ms`, `ok`, `error` of each tool that ran after it, in the order of the calls. They run at the same
    time."""
    difference: PromptDifference | None = None
    """The proof of a drift: `position` of the first id that differs, up to 8 ids `before` it, and up to 24 each of
    `expected` and `echoed`; or null."""


class Spans(BaseModel):
    """Says where the time went, wall milliseconds. `queued` runs from acceptance to the claim that finished it."""

    queued_ms: float = 0.0
    tokenizer_ms: float = 0.0
    llm_ms: float = 0.0
    """Of all turns, those of earlier attempts too; turns at once are added up."""
    tools_ms: float = 0.0
    """Likewise."""
    loop_ms: int | None = None
    """After that claim: its records waited for the worker, which was busy with other rollouts. Null in older results,
    like the next one."""
    redis_ms: int | None = None
    """Its records waited for Redis, and the worker had nothing else to do."""
    total_ms: float = 0.0
    """From that claim to the end."""


class _RolloutResult(BaseModel):
    schema_version: Literal[1] = RESULT_SCHEMA
    """Of this record."""
    uid: str
    """The pool's own id, `<batch id>-<index>`."""
    rollout_id: str
    """The caller's name for it."""
    batch_id: str
    """The pool's id of its batch."""
    index: int
    """Its place in the batch."""
    group: str | None = None
    """As submitted, like the next two."""
    labels: dict[str, str] = Field(default_factory=dict)
    """Those of the batch, and its own."""
    metadata: dict[str, Any] = Field(default_factory=dict)
    """Its own, over those of the defaults."""
    status: RolloutStatus
    """`completed`, `failed`, `cancelled` or `expired`."""
    finish_reason: FinishReason
    """What ended the conversation."""
    failure: Failure | None = None
    """`kind`, `boundary`, `category`, `message`, `retryable`, `http_status`, `turn`, `difference`; null unless it
    failed."""
    waited_for: Waiting | None = None
    """What it waited for when it expired or was cancelled, or null."""
    messages: list[Message] = Field(default_factory=list)
    """The whole transcript, every sampled turn included."""
    samples: list[Sample] = Field(default_factory=list)
    """What is trained on. Several where the trainer's prompt drifted or an agent edited the history."""
    alignment: Alignment | None = None
    """`exact`, `forked` or `unverified`; null if nothing was sampled."""
    drift: dict[str, int] = Field(default_factory=dict)
    """How many turns drifted, by label."""
    warnings: list[str] = Field(default_factory=list)
    """What to look at although nothing failed."""
    turns: list[TurnSummary] = Field(default_factory=list)
    """One for each model call."""
    num_llm_calls: int = 0
    """Successful model calls; verl's num_turns."""
    num_tool_calls: int = 0
    """Calls of tools."""
    prompt_tokens: int = 0
    """Sum over calls of the prompt's length."""
    response_tokens: int = 0
    """Sum over calls of the sampled tokens."""
    max_context_tokens: int = 0
    """Longest prompt + sampled tokens of one call."""
    spans: Spans = Field(default_factory=Spans)
    """Wall milliseconds: `queued_ms`, `tokenizer_ms`, `llm_ms`, `tools_ms`, `loop_ms` (its records waited for the
    worker, which was busy with others), `redis_ms` (they waited for Redis), `total_ms`. `llm_ms` and `tools_ms` are of
    all attempts, those behind them of the last one; what they leave of it is the worker's own work. `loop_ms` and
    `redis_ms` are null in older results."""
    attempt: int = 1
    """Which claim of it finished it."""
    worker: str | None = None
    """Who finished it."""
    tokenizer: dict[str, str] = Field(default_factory=dict)
    """Fingerprint of tokenizer, template and transformers that made the ids."""
    environment: EnvironmentReport | None = None
    """`name`, `seed`, `crash`, `steps`, `step_rewards`, `step_turns`, `done`, `reward`, `parts`; null where it had
    none, or ended before its session was open."""
    reward: float | None = None
    """What it is worth: what its grader says; without one, its environment. Null where neither said anything, and where
    it did not complete."""
    reward_parts: dict[str, float] = Field(default_factory=dict)
    """What the reward is made of."""
    trace: list[dict[str, Any]] | None = None
    """Protocol v1's debug trace, if `metadata.debug_trace` asked for it."""
    replay: ReplayRecord | None = None
    """The record that a replay and a fork need, or null."""


class RolloutResult(RolloutResultFields, _RolloutResult):
    """One finished rollout."""


def encode_result(result: RolloutResult) -> bytes:
    """Writes a result as JSON, its fields in their order.

    Plain values take orjson half of the time that the model's own dump takes. What only that can write, for example an
    integer of more than 64 bits in the metadata, it writes.
    """
    # A trainer's client reads results and writes none, and need not install it.
    import orjson

    try:
        samples = [orjson.Fragment(_encode_sample(sample)) for sample in result.samples]
        return orjson.dumps({**_plain(result), "samples": samples}, default=_plain, option=orjson.OPT_UTC_Z)
    except orjson.JSONEncodeError:
        return result.model_dump_json().encode()


def _plain(model: BaseModel) -> dict[str, Any]:
    """Returns the fields of a model that its dump has."""
    fields = {**vars(model), **(model.model_extra or {})}
    for name, is_left_out in _left_out(type(model)):
        if is_left_out(fields[name]):
            del fields[name]
    return fields


@cache
def _left_out(model: type[BaseModel]) -> list[tuple[str, Callable[[Any], bool]]]:
    """The fields that a dump leaves out, and when."""
    return [(name, field.exclude_if) for name, field in model.model_fields.items() if field.exclude_if is not None]


def _encode_sample(sample: Sample) -> bytes:
    """Writes a sample, its long lists in slices: where this is in a thread, an event loop can run between two."""
    import orjson

    lists = {
        name: orjson.Fragment(b"[%b]" % b",".join(orjson.dumps(part)[1:-1] for part in sliced(getattr(sample, name))))
        for name in _LISTS
    }
    return orjson.dumps({**vars(sample), **lists}, default=_plain)


class ResultItem(BaseModel):
    """A result with its place in the order in which the batch's rollouts ended."""

    cursor: str
    """Resume after this result by passing it as `cursor`."""
    result: RolloutResult


class ResultPage(BaseModel):
    """`GET /v1/batches/{id}/results`."""

    items: list[ResultItem]
    next_cursor: str
    """Pass it to get what finished after this page; equals the request's when the page is empty."""
    complete: bool
    """All rollouts of the batch have ended and this page reaches the last of them."""
