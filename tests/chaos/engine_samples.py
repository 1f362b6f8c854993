"""Whether each sample of a campaign's engines is what they noted that they sampled, and by which weights."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.chaos.manners import ENGINES, Manner
from tests.support.engine_calls import chain_of, versions_fault
from tests.support.gradual_engine import NotedCall


@dataclass
class EngineSamples:
    """What the logs say of rollouts over engines."""

    turns: dict[str, dict[int, dict[str, Any]]] = field(default_factory=dict)
    """The turns of each result, as the engine noted them; none where the result is no way through the notes."""
    over_updates: int = 0
    """Turns that several versions of the weights have sampled."""
    resampled: int = 0
    """Turns that an engine sampled in more than one attempt, or again because the reply was lost."""
    wrong_versions: list[str] = field(default_factory=list)
    """Rollouts whose segments name other weights than have sampled the ids, or do not tile the sample."""


def judge_engines(
    logs: Iterable[Sequence[Mapping[str, Any]]], manners: Mapping[str, Manner], results: Mapping[str, Mapping[str, Any]]
) -> EngineSamples:
    """Holds all results of engines' rollouts against the engines' notes, which are in trainers' logs."""
    calls: defaultdict[str, list[NotedCall]] = defaultdict(list)
    for log in logs:
        for entry in log:
            if entry["event"] == "drawn":
                noted = {name: value for name, value in entry.items() if name not in ("event", "at")}
                calls[entry["uid"]].append(NotedCall(**noted))
    found = EngineSamples()
    for uid, result in results.items():
        if manners.get(uid) not in ENGINES or len(result["samples"]) != 1:
            continue
        chain = chain_of(result, calls[uid]) or []
        turns: defaultdict[int, list[NotedCall]] = defaultdict(list)
        for call in chain:
            turns[call.turn].append(call)
        found.turns[uid] = {turn: _joined(parts) for turn, parts in turns.items()}
        found.over_updates += sum(
            len({version for call in parts for version in call.versions}) > 1 for parts in turns.values()
        )
        if chain and (fault := versions_fault(result, chain)) is not None:
            found.wrong_versions.append(f"{uid} ({fault})")
    # An aborted call is no second sampling, and what goes on after it is none either: their prompts differ.
    prompts = Counter((call.uid, call.turn, len(call.prompt)) for some in calls.values() for call in some if call.ids)
    found.resampled = len({(uid, turn) for (uid, turn, _), times in prompts.items() if times > 1})
    return found


def _joined(parts: Sequence[NotedCall]) -> dict[str, Any]:
    return {
        "turn": parts[0].turn,
        "prompt": parts[0].prompt,
        "ids": [token for call in parts for token in call.ids],
        "logprobs": [logprob for call in parts for logprob in call.logprobs],
    }
