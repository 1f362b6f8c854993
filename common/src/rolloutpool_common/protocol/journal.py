"""The records of a rollout's journal: what happened, so that another worker can go on from there.

A worker writes one record to Redis after each thing that it cannot repeat, before anything follows from it:

| kind | written | holds |
|---|---|---|
| `environment` | after a session was opened, before the first call | the messages that it begins with |
| `turn` | after the policy has sampled, before its tools run | the assistant message, the sampled ids |
| `observation` | after tools or environment have answered, before the next call | messages, the next turn's plan |
| `edit` | after an agent has replaced the history, before the next call | the history, the next turn's plan |

When a worker dies, the next one runs the agent again from the start. It gives the agent these records, one per step, in
their order, until they end. A record is checked when it is read from Redis. One that is written was made from values
that were checked before, so it is not checked again: that would cost a second look at each message.

Nobody changes a record. They are neither frozen nor slotted, because each turn makes two and writes them: a frozen one
takes twice as long to make, and orjson takes five times as long to write one with slots.
"""

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Annotated, Any, Literal

import orjson
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, with_config

from rolloutpool_common.errors import RolloutPoolError
from rolloutpool_common.protocol.environments import CrashEffect, EnvironmentFacts
from rolloutpool_common.protocol.messages import Message
from rolloutpool_common.protocol.result import ToolTime, TurnSummary
from rolloutpool_common.tokens.entries import Entry, SampledEntry


class JournalUnreadable(RolloutPoolError):
    """The journal holds a record that this version of rolloutpool does not write."""


class RecordUnknown(JournalUnreadable):
    """The journal holds a kind of record, or a form of one, that another release has written."""


class TrainerKind(StrEnum):
    """Says what a trainer does with the ids that it sampled."""

    UNKNOWN = "unknown"
    KEEPS_IDS = "keeps_ids"
    """It continues them: the next prompt begins with prompt + sampled ids."""
    RERENDERS = "rerenders"
    """It renders all messages again each turn; arguments of calls as the text that they are on the wire, or not known
    how."""
    RERENDERS_PARSED = "rerenders_parsed"
    """It renders all messages again, and parses arguments before that, as vLLM does."""

    @property
    def renders_again(self) -> bool:
        """Whether it renders history again, in either form."""
        return self in (TrainerKind.RERENDERS, TrainerKind.RERENDERS_PARSED)


@with_config(ConfigDict(extra="forbid"))
@dataclass
class MaskPlan:
    """Says which lengths of `response_mask` a turn is asked with; `conversation/mask_plan.py` decides them."""

    lengths: tuple[int, ...]
    """The lengths to try, in order: a second one only where the first may be refused rightly."""
    exact: int
    """New tokens for a trainer that keeps sampled ids."""
    rerender: int | None
    """New tokens for a trainer that renders history again; None where it was not needed or the template refuses."""
    parsed: int | None = None
    """The same for a trainer that parses the arguments of calls before it renders."""


@with_config(ConfigDict(extra="forbid"))
@dataclass
class PlannedTurn:
    """How the next turn is asked, decided when the messages before it are complete.

    It is journaled, because a turn may be asked twice, by two workers, and the trainer must get the same request.
    """

    plan: MaskPlan
    digest: str
    """blake2b-128 (hex) of the request's body with the plan's first mask."""
    edited: bool = False
    """Whether the agent has replaced the history, so that the trainer keeps nothing of it."""


def _checked_message(message: dict[str, Any]) -> dict[str, Any]:
    Message.model_validate(message)
    return message


WireMessage = Annotated[dict[str, Any], AfterValidator(_checked_message)]
"""A message in normal form. It stays a dict: its bytes, and so the order of its keys, are part of the next request."""


@with_config(ConfigDict(extra="forbid"))
@dataclass(kw_only=True)
class EnvironmentRecord:
    """A session that was opened; the first record of a rollout with an environment."""

    name: str
    """Of the environment."""
    crash: CrashEffect
    """As the environment declared it then."""
    messages: list[WireMessage]
    """What the session adds to the rollout's own messages."""
    tools_digest: str
    """blake2b-128 (hex) of the definitions of its tools. They are part of the prompt, so another attempt's session must
    have the same ones."""
    entries: tuple[Entry, ...] = ()
    """Always empty: nothing was sampled yet."""
    kind: Literal["environment"] = "environment"
    v: Literal[1, 2] = field(default=1, compare=False)
    branch: Literal[0] = 0
    """A session is opened before any other branch."""


@with_config(ConfigDict(extra="forbid"))
@dataclass(kw_only=True)
class TurnRecord:
    """One model call that succeeded."""

    message: WireMessage
    """The assistant's message."""
    entries: tuple[Entry, ...]
    """What the ledger has written since the record before."""
    trainer: TrainerKind
    """What is known of the trainer after this turn."""
    zero_logprobs: bool
    """Whether every log-probability of the turn was 0.0, which no real policy reports."""
    summary: TurnSummary
    """The turn as the result reports it."""
    llm_ms: float
    """Wall time of the call, with all its repetitions."""
    kind: Literal["turn"] = "turn"
    v: Literal[1, 2] = field(default=1, compare=False)
    branch: int = 0
    """Of which branch of the rollout, from 0; a plain rollout has one."""


@with_config(ConfigDict(extra="forbid"))
@dataclass(kw_only=True)
class ObservationRecord:
    """Messages of tools and environment after a turn."""

    messages: list[WireMessage]
    """The results in the order of the calls, then what else the agent appends."""
    entries: tuple[Entry, ...]
    """What the ledger has written since the record before."""
    planned: PlannedTurn
    """How the next turn is asked."""
    tools_ms: float
    """Wall time of the tools."""
    tool_calls: int
    """How many calls were run."""
    warnings: tuple[str, ...] = ()
    """What the result is to say of these tools: `tool_blocked:NAME`, `tool_memory:NAME`."""
    times: tuple[ToolTime, ...] = ()
    """Of each of these calls; empty in records of older versions."""
    environment: EnvironmentFacts | None = None
    """What else the rollout's environment said; null where it was not asked."""
    kind: Literal["observation"] = "observation"
    v: Literal[1, 2] = field(default=1, compare=False)
    branch: int = 0
    """As of a turn."""


@with_config(ConfigDict(extra="forbid"))
@dataclass(kw_only=True)
class EditRecord:
    """A history that an agent has put in the place of the old one."""

    messages: list[WireMessage]
    """The whole history from now on."""
    entries: tuple[Entry, ...]
    """What the ledger has written since the record before."""
    planned: PlannedTurn
    """How the next turn is asked."""
    kind: Literal["edit"] = "edit"
    v: Literal[1, 2] = field(default=1, compare=False)
    branch: int = 0
    """As of a turn."""


JournalRecord = EnvironmentRecord | TurnRecord | ObservationRecord | EditRecord

_FIRST_BRANCH = b',"branch":0}'
"""How each record of the first branch ends."""
_RECORD: TypeAdapter[JournalRecord] = TypeAdapter(Annotated[JournalRecord, Field(discriminator="kind")])


def encode_record(record: JournalRecord) -> bytes:
    """The record as JSON. orjson reads the fields directly, in a quarter of the time of pydantic's dump (4,000 ids).

    The first branch is not named, so a worker of an older release reads what a plain rollout writes. A record of
    another branch is of form 2, which it leaves to a newer one.
    """
    if record.branch:
        return orjson.dumps(replace(record, v=2), default=_fields)
    return orjson.dumps(record, default=_fields).removesuffix(_FIRST_BRANCH) + b"}"


def record_length(record: JournalRecord) -> int:
    """About how many characters the record's JSON has; few more than its ids and the texts of its messages."""
    length = 0
    for message in (record.message,) if isinstance(record, TurnRecord) else record.messages:
        content = message.get("content")
        if isinstance(content, str):
            length += len(content)
        elif content:
            length += sum(len(text) for part in content if isinstance(text := part.get("text"), str))
        for call in message.get("tool_calls") or ():
            if isinstance(arguments := call["function"]["arguments"], str):
                length += len(arguments)
    for entry in record.entries:
        length += len(entry.ids) + (len(entry.logprobs) if isinstance(entry, SampledEntry) else 0)
    return length


def parse_record(data: bytes) -> JournalRecord:
    """Reads a record that `encode_record` gave."""
    try:
        return _RECORD.validate_json(data)
    except ValidationError as error:
        for fault in error.errors(include_input=False):
            if fault["type"] == "union_tag_invalid":
                raise RecordUnknown(f"{RecordUnknown.__doc__} Its kind is {fault['ctx']['tag'][:64]!r}.") from None
            if fault["type"] == "literal_error" and fault["loc"][-1:] == ("v",):
                raise RecordUnknown(f"{RecordUnknown.__doc__} It is another form of {fault['loc'][0]!r}.") from None
        fields = sorted({".".join(map(str, fault["loc"])) for fault in error.errors(include_input=False)})
        raise JournalUnreadable(f"{JournalUnreadable.__doc__} See its {fields}.") from None


def _fields(model: object) -> dict[str, Any]:
    if isinstance(model, BaseModel):
        return vars(model)
    raise TypeError(type(model).__name__)
