"""The result of a rollout: one record, which is stored, polled, streamed and pushed.

`samples` are what the token ledger gives (`tokens/samples.py`): `response_mask[i]` is 1 exactly where
`response_ids[i]` was sampled by the policy. All lists of a sample's response have the same length [R]. A failed rollout
delivers the turns whose masks were proved before the failure. Field meanings are the same for every way of delivery.
"""

from dataclasses import dataclass
from enum import StrEnum
from itertools import takewhile
from typing import Any, Literal

from pydantic import BaseModel, Field

from rolloutpool_common.outcomes import Failure, FinishReason, RolloutStatus
from rolloutpool_common.protocol.attachments import AttachmentsReport
from rolloutpool_common.protocol.drift import PromptDifference
from rolloutpool_common.protocol.environments import EnvironmentReport
from rolloutpool_common.protocol.grading import GradeReport
from rolloutpool_common.protocol.messages import Message
from rolloutpool_common.protocol.replay import ForkOrigin, ReplayRecord
from rolloutpool_common.protocol.runs import StaleEnd, StaleVersions
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


def _is_none(value: object) -> bool:
    return value is None


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
    """What happened in one model call."""

    turn: int
    prompt_tokens: int
    sampled_tokens: int
    mask_sent: int | None
    """Length of the response_mask that was sent; null if the mask was null."""
    finish_reason: str | None
    """The trainer's word for why sampling stopped."""
    drift: str
    """How the echoed prompt differs from the ledger. `none`: not at all. `edited`: the agent edited the history, and
    the prompt is what was expected of the edit."""
    tool_calls: int
    stop: StopToken
    policy_version: str | None = None
    start_ms: float | None = None
    """From the rollout's acceptance to the start of the call, wall milliseconds. Null in results of older versions, as
    is `llm_ms`."""
    llm_ms: float | None = None
    """Wall time of the call, with all its repetitions."""
    aborts: int = 0
    """How often an engine stopped in the middle of it, for a weight update. It went on from what it had."""
    resampled: bool = False
    """Whether a worker died while an engine sampled it. That reply is lost, and this is another one."""
    tools: list[ToolTime] = Field(default_factory=list)
    """The tools that ran after it, in the order of its calls. They run at the same time."""
    difference: PromptDifference | None = None
    """The proof of a drift: where the echoed prompt first differs from the ledger. Null where they are equal or nothing
    was echoed, and in results of older versions."""


class Spans(BaseModel):
    """Where the time went, wall milliseconds. `queued` runs from acceptance to the claim that finished it."""

    queued_ms: float = 0.0
    tokenizer_ms: float = 0.0
    llm_ms: float = 0.0
    tools_ms: float = 0.0
    total_ms: float = 0.0
    """From that claim to the end."""


class RolloutResult(BaseModel):
    """One finished rollout."""

    schema_version: Literal[1] = RESULT_SCHEMA
    uid: str
    rollout_id: str
    batch_id: str
    index: int
    group: str | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    metadata: dict[str, Any] = Field(default_factory=dict)
    status: RolloutStatus
    finish_reason: FinishReason
    failure: Failure | None = None
    waited_for: Waiting | None = None
    """What it waited for when it expired or was cancelled; null where it ended otherwise or did not wait."""
    staleness: int | None = None
    """How many versions its run was ahead of the oldest weights that sampled it, when it ended. Null where one of both
    is not known as a number, and where it ended before a worker had it."""
    stale: StaleEnd | None = None
    """What became of it because that was more than its batch allows; null where it was not."""
    stale_versions: StaleVersions | None = Field(default=None, exclude_if=_is_none)
    """The versions of a rollout that was too old; left out of others."""
    messages: list[Message] = Field(default_factory=list)
    """The whole transcript, every sampled turn included."""
    samples: list[Sample] = Field(default_factory=list)
    alignment: Alignment | None = None
    """Null if nothing was sampled."""
    drift: dict[str, int] = Field(default_factory=dict)
    warnings: list[str] = Field(default_factory=list)
    turns: list[TurnSummary] = Field(default_factory=list)
    num_llm_calls: int = 0
    """Successful model calls; verl's num_turns."""
    num_tool_calls: int = 0
    prompt_tokens: int = 0
    """Sum over calls of the prompt's length."""
    response_tokens: int = 0
    """Sum over calls of the sampled tokens."""
    max_context_tokens: int = 0
    """Longest prompt + sampled tokens of one call."""
    spans: Spans = Field(default_factory=Spans)
    attempt: int = 1
    worker: str | None = None
    tokenizer: dict[str, str] = Field(default_factory=dict)
    """Fingerprint of tokenizer, template and transformers that made the ids."""
    environment: EnvironmentReport | None = None
    """Null where the rollout had no environment, or ended before its session was open."""
    reward: float | None = None
    """What the rollout is worth: what its grader says; without a grader, what its environment says. Null where neither
    said anything, and always where the rollout did not complete."""
    reward_parts: dict[str, float] = Field(default_factory=dict)
    """What the reward is made of."""
    token_rewards: list[list[float]] | None = None
    """By the grader: a list for each sample, as long as its `response_ids`; null where it gave none."""
    grade: GradeReport | None = None
    """Null where the rollout had no grader, or was not graded because its conversation did not complete."""
    trace: list[dict[str, Any]] | None = None
    """Protocol v1's debug trace, if `metadata.debug_trace` asked for it."""
    forked_from: ForkOrigin | None = None
    """The rollout whose first turns it has; null unless it is a fork."""
    attachments: AttachmentsReport | None = Field(default=None, exclude_if=_is_none)
    """What is kept beside it, for `GET /v1/rollouts/{uid}/attachments`; left out where nothing was asked for."""
    replay: ReplayRecord | None = None
    """What a replay and a fork need. Null where `replay_record` is false, where nothing was sampled, and in results of
    older versions."""


def encode_result(result: RolloutResult) -> bytes:
    """Writes a result as JSON, its fields in their order.

    The lists of its samples are nearly all of it. orjson writes them in half of pydantic's time, and in slices, so that
    an event loop can run between two of them where this runs in a thread.
    """
    before = result.model_dump_json(include=_BEFORE).encode()
    after = result.model_dump_json(exclude=_BEFORE | {"samples"}).encode()
    samples = b",".join(map(_encode_sample, result.samples))
    return b"".join((before[:-1], b',"samples":[', samples, b"],", after[1:]))


def _encode_sample(sample: Sample) -> bytes:
    # A trainer's client reads results and writes none, and need not install it.
    import orjson

    lists = (
        b'"%b":[%b]' % (name.encode(), b",".join(orjson.dumps(part)[1:-1] for part in sliced(getattr(sample, name))))
        for name in _LISTS
    )
    rest = sample.model_dump_json(exclude=set(_LISTS)).encode()
    return b"".join((b"{", b",".join(lists), b",", rest[1:]))


_BEFORE = set(takewhile(lambda name: name != "samples", RolloutResult.model_fields))
"""The fields before the samples."""


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
