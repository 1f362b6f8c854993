"""Compares a result with what its replay gave: turns, ids, masks, log-probabilities, segments, messages, the end.

Times, workers and attempts are left out: no two runs have them in common. A replay answers with what the journal says.
That can be read only beside the ids and messages that it was written with (`common/protocol/kept_journal.py`), so what
differs here is what this code makes of them.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from rolloutpool_common.outcomes import RolloutStatus
from rolloutpool_common.protocol.replay import ReplayDifference
from rolloutpool_common.protocol.result import RolloutResult, Sample

_TURN_FIELDS = (
    "prompt_tokens",
    "sampled_tokens",
    "mask_sent",
    "finish_reason",
    "drift",
    "tool_calls",
    "stop",
    "policy_version",
    "aborts",
)
_SAMPLE_LISTS = ("prompt_ids", "response_ids", "response_mask", "response_logprobs")
_LONGEST = 120
"""Characters of a value that are shown."""


def differences(recorded: RolloutResult, again: RolloutResult) -> list[ReplayDifference]:
    """Lists what differs, in the order of the rollout."""
    found = [*_turns(recorded, again), *_samples(recorded, again)]
    found += [*_messages(recorded, again), *_end(recorded, again)]
    last = len(recorded.turns) + 1
    return sorted(found, key=lambda difference: last if difference.turn is None else difference.turn)


def _turns(recorded: RolloutResult, again: RolloutResult) -> Iterator[ReplayDifference]:
    if len(recorded.turns) != len(again.turns):
        shorter = min(len(recorded.turns), len(again.turns))
        yield _difference("turns", len(recorded.turns), len(again.turns), turn=shorter + 1)
    for a, b in zip(recorded.turns, again.turns, strict=False):
        for name in _TURN_FIELDS:
            if getattr(a, name) != getattr(b, name):
                yield _difference(name, getattr(a, name), getattr(b, name), turn=a.turn)
        position, echoed = (None if x.difference is None else x.difference.position for x in (a, b))
        if position != echoed:
            yield _difference("difference.position", position, echoed, turn=a.turn)


def _samples(recorded: RolloutResult, again: RolloutResult) -> Iterator[ReplayDifference]:
    if len(recorded.samples) != len(again.samples):
        yield _difference("samples", len(recorded.samples), len(again.samples))
    for index, (a, b) in enumerate(zip(recorded.samples, again.samples, strict=False)):
        for name in _SAMPLE_LISTS:
            ours, theirs = getattr(a, name), getattr(b, name)
            if (position := _first(ours, theirs)) is not None:
                turn = _turn_at(a, 0 if name == "prompt_ids" else position)
                yield _difference(
                    name, _at(ours, position), _at(theirs, position), turn=turn, sample=index, position=position
                )
        if (position := _first(a.segments, b.segments)) is not None:
            yield _difference(
                "segments", _at(a.segments, position), _at(b.segments, position), sample=index, position=position
            )


def _turn_at(sample: Sample, at: int) -> int | None:
    """The turn that a place of a response belongs to; a prompt's is that of the response's first place."""
    return next((s.turn for s in sample.segments if s.start <= at < s.start + s.n), None)


def _messages(recorded: RolloutResult, again: RolloutResult) -> Iterator[ReplayDifference]:
    ours, theirs = ([message.wire() for message in result.messages] for result in (recorded, again))
    for position, (a, b) in enumerate(zip(ours, theirs, strict=False)):
        if a != b:
            name = next(key for key in (*a, *b) if a.get(key) != b.get(key) or key not in a or key not in b)
            # After an edit, the transcript no longer has all turns, so its messages cannot be counted.
            said = [place for place, message in enumerate(ours) if message["role"] == "assistant"]
            given = len(said) - len(recorded.turns)
            known = sum(place <= position for place in said[given:]) or None if given >= 0 else None
            yield _difference(f"messages.{name}", a.get(name), b.get(name), turn=known, position=position)
            return
    if len(ours) != len(theirs):
        yield _difference("messages", len(ours), len(theirs), position=min(len(ours), len(theirs)))


def _end(recorded: RolloutResult, again: RolloutResult) -> Iterator[ReplayDifference]:
    # A failure, a deadline and a cancel come from outside, and a replay has no outside.
    if recorded.status is not RolloutStatus.COMPLETED:
        return
    for name in ("status", "finish_reason", "alignment", "drift"):
        if getattr(recorded, name) != getattr(again, name):
            yield _difference(name, getattr(recorded, name), getattr(again, name))
    for name in ("steps", "step_rewards", "done", "reward"):
        a, b = (getattr(result.environment, name, None) for result in (recorded, again))
        if a != b:
            yield _difference(f"environment.{name}", a, b)


def _first(ours: Sequence[Any], theirs: Sequence[Any]) -> int | None:
    """The first place where two lists differ; None where they are equal."""
    if ours == theirs:
        return None
    pairs = enumerate(zip(ours, theirs, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(ours), len(theirs)))


def _at(values: Sequence[Any], position: int) -> Any:
    return values[position] if position < len(values) else "nothing"


def _difference(
    what: str,
    recorded: object,
    replayed: object,
    *,
    turn: int | None = None,
    sample: int | None = None,
    position: int | None = None,
) -> ReplayDifference:
    return ReplayDifference(
        what=what,
        recorded=str(recorded)[:_LONGEST],
        replayed=str(replayed)[:_LONGEST],
        turn=turn,
        sample=sample,
        position=position,
    )
