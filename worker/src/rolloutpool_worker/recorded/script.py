"""What happened in a rollout, turn by turn, as its result has it.

A result holds a rollout as it ended: one transcript, and samples. The script is made of them in three steps:

1. **Messages.** The transcript is cut at the policy's messages: each begins a turn, and what follows it was observed
   after it. Where the agent has edited the history, the record has the transcript before each edit, and what is new in
   each of these is read one after the other.
2. **Tokens.** A sample's segments say which ids a turn has sampled, and so what its prompt was: all ids of the sample
   before them.
3. **Observations.** After a policy's message with calls, the messages of tools that answer these calls are results.

    messages   user, assistant (call), tool, assistant       2 turns: the tool's message is the result of turn 1
    sample     prompt 1 2 3, response 10 11 | 20 | 12        turn 1: 10 11 after 1 2 3; turn 2: 12 after 1 2 3 10 11 20
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rolloutpool_common.errors import RolloutPoolError
from rolloutpool_common.protocol.drift import DriftLabel
from rolloutpool_common.protocol.environments import EnvironmentFacts, EnvironmentStep
from rolloutpool_common.protocol.replay import ReplayRecord
from rolloutpool_common.protocol.result import RolloutResult, Sample, ToolTime, TurnSummary
from rolloutpool_worker.policy.engine_reply import EnginePart

__all__ = ["RecordEnds", "RecordLacks", "RecordMismatch", "RecordedTurn", "Script"]

Messages = list[dict[str, Any]]


class RecordLacks(RolloutPoolError):
    """The result has too little for a replay."""


class RecordEnds(RolloutPoolError):
    """The agent asks for more than the record has."""


class RecordMismatch(RolloutPoolError):
    """The agent does something else than the record says."""

    def __init__(self, what: str, recorded: str, replayed: str, *, turn: int) -> None:
        """What differs, and in which turn."""
        super().__init__(f"turn {turn}: {what}: recorded {recorded}, now {replayed}")
        self.what, self.recorded, self.replayed, self.turn = what, recorded, replayed, turn


@dataclass(frozen=True)
class RecordedTurn:
    """One turn as it happened."""

    summary: TurnSummary
    message: dict[str, Any]
    """The policy's, in normal form."""
    observed: Messages
    """What followed it, before the next turn."""
    parts: tuple[EnginePart, ...]
    """What was sampled; empty where a turn has no ids."""
    sample: Sample | None
    """Which holds these ids; None where there are none."""
    start: int
    """Where they begin in that sample's response."""
    facts: EnvironmentFacts | None
    """What the environment said after it."""

    @property
    def echoed(self) -> bool:
        """Whether the trainer reported its prompt."""
        return self.summary.drift != DriftLabel.UNVERIFIED

    @property
    def prompt_ids(self) -> list[int] | None:
        """What it was sampled after; None where the result does not have it."""
        return None if self.sample is None else [*self.sample.prompt_ids, *self.sample.response_ids[: self.start]]

    @property
    def trained(self) -> bool:
        """Whether its ids are trained; where they are not, the result has no log-probabilities of them."""
        n = sum(len(part.ids) for part in self.parts)
        return self.sample is not None and 1 in self.sample.response_mask[self.start : self.start + n]

    @property
    def results(self) -> Messages | None:
        """The results of its calls; None where they were not run, or the rollout ended before they were recorded."""
        calls = self.message.get("tool_calls") or []
        found = self.observed[: len(calls)]
        answered = len(found) == len(calls) and all(message["role"] == "tool" for message in found)
        return found if answered else None

    @property
    def times(self) -> list[ToolTime]:
        """How long each of these calls took."""
        return self.summary.tools


class Script:
    """The turns of one rollout, or those of them that a fork keeps."""

    def __init__(self, turns: Sequence[RecordedTurn], opening: Messages, given: int, *, last: int | None) -> None:
        """Use `read`.

        Args:
            turns: In order, from turn 1.
            opening: The messages before the first turn.
            given: How many of these the trainer submitted.
            last: The last turn that is answered from the record; None for all of them and nothing after them.
        """
        self._turns = turns if last is None else turns[:last]
        self.given = opening[:given]
        """The rollout's own messages."""
        self.opened = opening[given:]
        """Those with which its environment's session began."""
        self.whole = last is None
        """Whether nothing may follow the recorded turns."""

    def __len__(self) -> int:
        return len(self._turns)

    @classmethod
    def read(cls, result: RolloutResult, record: ReplayRecord, *, last: int | None = None) -> "Script":
        """Reads a result.

        Args:
            result: Of a rollout that has ended.
            record: Its own, or what is assumed of an older one.
            last: As of `Script`.

        Raises:
            RecordLacks: Something is missing; the message says what.
        """
        opening, said = _split(result, record)
        if len(said) != len(result.turns):
            raise RecordLacks(
                f"its transcript has {len(said)} messages of the policy, and it counts {len(result.turns)} turns"
            )
        parts: dict[int, list[tuple[Sample, int, EnginePart]]] = {}
        for sample in result.samples:
            for segment in sample.segments:
                if segment.kind == "sampled":
                    part = slice(segment.start, segment.start + segment.n)
                    ids, logprobs = sample.response_ids[part], sample.response_logprobs[part]
                    found = EnginePart(ids, logprobs, segment.policy_version)
                    parts.setdefault(segment.turn, []).append((sample, segment.start, found))
        steps: dict[int, list[EnvironmentStep]] = {}
        for step in record.steps:
            steps.setdefault(step.turn, []).append(EnvironmentStep(step.place, step.reward, step.done))
        turns = []
        for summary, (message, observed) in zip(result.turns, said, strict=True):
            sampled, said_then = parts.get(summary.turn, []), steps.get(summary.turn)
            if sum(len(part.ids) for *_, part in sampled) != summary.sampled_tokens:
                raise RecordLacks(f"turn {summary.turn} has sampled {summary.sampled_tokens} ids, not all are there")
            turns.append(
                RecordedTurn(
                    summary=summary,
                    message=message,
                    observed=observed,
                    parts=tuple(part for *_, part in sampled),
                    sample=sampled[0][0] if sampled else None,
                    start=sampled[0][1] if sampled else 0,
                    facts=EnvironmentFacts(tuple(said_then), record.snapshots.get(summary.turn)) if said_then else None,
                )
            )
        return cls(turns, opening, record.given, last=last)

    def turn(self, number: int) -> RecordedTurn | None:
        """Finds a turn, from 1.

        Returns:
            The turn; None behind what a fork keeps.

        Raises:
            RecordEnds: There is no such turn, and nothing may follow.
        """
        if number <= len(self._turns):
            return self._turns[number - 1]
        if self.whole:
            raise RecordEnds(f"turn {number} is not in the record, which has {len(self._turns)} turns")
        return None


def _split(result: RolloutResult, record: ReplayRecord) -> tuple[Messages, list[tuple[dict[str, Any], Messages]]]:
    """Cuts the messages at the policy's: what came before the first turn, then each turn with what followed it."""
    transcripts = [*(edit.before for edit in record.edits), result.messages]
    begin = record.given + record.opened
    opening = [message.wire() for message in transcripts[0][:begin]]
    # An edited history begins with what the edit has left; what is new follows that.
    starts = [begin, *(edit.kept for edit in record.edits)]
    turns: list[tuple[dict[str, Any], Messages]] = []
    for transcript, start in zip(transcripts, starts, strict=True):
        for message in transcript[start:]:
            wire = message.wire()
            if wire["role"] == "assistant":
                turns.append((wire, []))
            elif turns:
                turns[-1][1].append(wire)
            else:
                raise RecordLacks("messages follow the prompt before the first turn")
    return opening, turns


def joined(ids: Sequence[int]) -> bytes:
    """Writes ids as a channel to an engine sends them: numbers and commas."""
    return ",".join(map(str, ids)).encode()


def shown_calls(calls: Sequence[Mapping[str, Any]]) -> str:
    """Names calls for the message of a difference."""
    return ", ".join(f"{call['function']['name']}#{call['id']}" for call in calls) or "none"
