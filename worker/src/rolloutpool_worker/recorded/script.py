"""Says what happened in a rollout, turn by turn, as its journal has it.

A result carries the journal (`common/protocol/kept_journal.py`). Its records are read in their order:

    turn          begins a turn: the policy's message, and what was sampled after which prompt
    observation   follows it: results of its calls, what the environment said, messages of the agent
    edit          follows it: from here on the history is another one

Prompts are not in the records; they are what the ledger's entries before the sampled ones make of the context.
"""

from array import array
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rolloutpool_common.errors import RolloutPoolError
from rolloutpool_common.protocol.drift import DriftLabel
from rolloutpool_common.protocol.environments import EnvironmentFacts
from rolloutpool_common.protocol.journal import (
    EditRecord,
    EnvironmentRecord,
    JournalRecord,
    JournalUnreadable,
    ObservationRecord,
    TurnRecord,
)
from rolloutpool_common.protocol.kept_journal import JournalMissing, read_journal
from rolloutpool_common.protocol.result import RolloutResult, ToolTime, TurnSummary
from rolloutpool_common.tokens.arrays import unpack
from rolloutpool_common.tokens.context_fold import ContextFold
from rolloutpool_common.tokens.entries import Entry, ForkEntry, SampledEntry
from rolloutpool_worker.environments import StepAnswer
from rolloutpool_worker.policy.reply import SampledPart

Messages = list[dict[str, Any]]


class RecordLacks(RolloutPoolError):
    """The result has too little for a replay."""


class RecordEnds(RolloutPoolError):
    """The agent asks for more than the record has."""


class RecordMismatch(RolloutPoolError):
    """The agent does something else than the record says."""

    def __init__(self, what: str, recorded: str, replayed: str, *, turn: int) -> None:
        """Returns what differs, and in which turn."""
        super().__init__(f"turn {turn}: {what}: recorded {recorded}, now {replayed}")
        self.what, self.recorded, self.replayed, self.turn = what, recorded, replayed, turn


@dataclass
class RecordedTurn:
    """One turn as it happened."""

    record: TurnRecord
    context: "array[int]" = field(repr=False)
    """Begins with its prompt; other turns may have the same."""
    start: int
    """Where what was sampled begins in it."""
    parts: tuple[SampledPart, ...]
    """What was sampled; those without ids are left out."""
    after: list[ObservationRecord | EditRecord] = field(default_factory=list)
    """The records that follow it, up to the next turn."""

    @property
    def summary(self) -> TurnSummary:
        """The turn as the result reports it."""
        return self.record.summary

    @property
    def message(self) -> dict[str, Any]:
        """The policy's, in normal form."""
        return self.record.message

    @property
    def prompt_ids(self) -> list[int]:
        """Returns what it was sampled after."""
        return self.context[: self.start].tolist()

    @property
    def echoed(self) -> bool:
        """Whether the trainer reported its prompt."""
        return self.summary.drift != DriftLabel.UNVERIFIED

    @property
    def trained(self) -> bool:
        """Whether its ids are trained."""
        return any(entry.train and entry.ids for entry in self.record.entries if isinstance(entry, SampledEntry))

    @property
    def results(self) -> Messages | None:
        """The results of its calls; None where they were not run, or the rollout ended before they were recorded."""
        answer = next((one for one in self._observations if one.tool_calls), None)
        return None if answer is None else answer.messages[: answer.tool_calls]

    @property
    def times(self) -> Sequence[ToolTime]:
        """How long each of these calls took."""
        return next((one.times for one in self._observations if one.tool_calls), ())

    @property
    def facts(self) -> EnvironmentFacts | None:
        """Returns what its environment said after it."""
        return next((one.environment for one in self._observations if one.environment is not None), None)

    @property
    def answer(self) -> StepAnswer | None:
        """Returns what its environment answered to its message as an action; None where it was not asked so."""
        asked = next((one for one in self._observations if one.environment is not None and not one.tool_calls), None)
        if asked is None or asked.environment is None or not asked.environment.steps:
            return None
        (step,) = asked.environment.steps
        return StepAnswer(asked.messages[0]["content"], step.reward, step.done, step.info)

    @property
    def _observations(self) -> list[ObservationRecord]:
        return [one for one in self.after if isinstance(one, ObservationRecord)]


class Script:
    """The turns of one rollout, or those of them with which another one begins."""

    def __init__(self, submitted: Messages, records: Sequence[JournalRecord], *, last: int | None = None) -> None:
        """Reads a journal."""
        self.given = submitted
        """The rollout's own messages."""
        self.session: EnvironmentRecord | None = None
        """How its environment's session began; None where it had none."""
        self.whole = last is None
        """Whether nothing may follow the recorded turns."""
        self.following: RecordedTurn | None = None
        """The turn behind the last one that is kept; None where there is none."""
        turns: list[RecordedTurn] = []
        context = ContextFold()
        for record in records:
            match record:
                case EnvironmentRecord():
                    self.session = record
                case TurnRecord():
                    turns.append(_turn(record, context))
                case _:
                    _follow(context, record.entries)
                    turns[-1].after.append(record)
        if last is not None:
            self.following = turns[last] if last < len(turns) else None
            turns = turns[:last]
        self._turns = turns

    def __len__(self) -> int:
        return len(self._turns)

    @classmethod
    def read(cls, result: RolloutResult, *, last: int | None = None) -> "Script":
        """Reads a result."""
        try:
            kept = read_journal(result)
        except (JournalMissing, JournalUnreadable) as error:
            raise RecordLacks(error.message) from None
        if any(record.branch for record in kept.records):
            raise RecordLacks("it has several branches, and turns are counted in one")
        if not any(record.entries for record in kept.records):
            raise RecordLacks("its policy has given no ids")
        return cls(kept.submitted, kept.records, last=last)

    @property
    def opened(self) -> Messages:
        """The messages with which its environment's session began."""
        return [] if self.session is None else self.session.messages

    @property
    def records(self) -> list[JournalRecord]:
        """The records of these turns, and of the session before them."""
        found: list[JournalRecord] = [] if self.session is None else [self.session]
        for turn in self._turns:
            found += (turn.record, *turn.after)
        return found

    def drop_logprobs(self, *, keep: Collection[int]) -> None:
        """Puts zeros in the place of log-probabilities, of which turns that are not trained have none."""
        for number, turn in enumerate(self._turns, 1):
            if number not in keep:
                turn.parts = tuple(replace(part, logprobs=[0.0] * len(part.ids)) for part in turn.parts)

    def turn(self, number: int) -> RecordedTurn | None:
        """Finds a turn, from 1."""
        if number <= len(self._turns):
            return self._turns[number - 1]
        if self.whole:
            raise RecordEnds(f"turn {number} is not in the record, which has {len(self._turns)} turns")
        return None


def _turn(record: TurnRecord, context: ContextFold) -> RecordedTurn:
    sampled = [entry for entry in record.entries if isinstance(entry, SampledEntry)]
    # The trainer's prompt may have changed the context before anything was sampled.
    _follow(context, record.entries[: len(record.entries) - len(sampled)])
    start = len(context.ids)
    _follow(context, sampled)
    parts = (
        SampledPart(unpack(e.ids, array("I")).tolist(), unpack(e.logprobs, array("d")).tolist(), e.policy_version)
        for e in sampled
    )
    return RecordedTurn(record, context.ids, start, tuple(part for part in parts if part.ids))


def _follow(context: ContextFold, entries: Sequence[Entry]) -> None:
    for entry in entries:
        # Another tail begins behind what any turn before was asked with. A fork of the ledger may cut that, and its
        # turns keep it.
        keep, anew = getattr(entry, "keep", None), isinstance(entry, ForkEntry)
        context.add(unpack(entry.ids, array("I")), keep, anew=anew)


def shown_calls(calls: Sequence[Mapping[str, Any]]) -> str:
    """Names calls for the message of a difference."""
    return ", ".join(f"{call['function']['name']}#{call['id']}" for call in calls) or "none"
