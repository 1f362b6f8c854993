"""The figures of a batch for a logger: what its results say, added up as they are read.

`BatchTally.summary` gives one flat dict of numbers. Its fixed keys are always there, so that curves have no gaps; keys
for reasons (`failures/infra/network_error`) come with the first of their kind.
"""

import math
from collections import Counter
from typing import Final

from rolloutpool_common.composition import COUNTED
from rolloutpool_common.outcomes import RolloutStatus
from rolloutpool_common.protocol.result import Alignment, RolloutResult
from rolloutpool_common.tokens.versions import version_number
from rolloutpool_trainer.client.groups import GroupUse, SelectedGroup

_SPANS: Final = ("queued_ms", "tokenizer_ms", "llm_ms", "tools_ms", "total_ms")
_ENDS: Final = tuple(status for status in RolloutStatus if status.terminal)


class BatchTally:
    """Adds up results."""

    def __init__(self) -> None:
        self.refills: set[str] = set()
        """A key for each time that a group was refilled."""
        self._counts: Counter[str] = Counter()
        """By key of the summary."""
        self._groups: dict[str, tuple[bool, Counter[str]]] = {}
        """Of each group that was judged: whether it can be used, and what was left out of it."""
        self._spans: dict[str, list[float]] = {name: [] for name in _SPANS}
        self._versions: list[int] = []
        """The oldest version of each rollout that names versions with numbers."""
        self._seen: set[str] = set()

    def __len__(self) -> int:
        return len(self._seen)

    def add(self, result: RolloutResult) -> None:
        """Counts a result; one that was counted before is left out, so a batch may be read again."""
        if result.uid in self._seen:
            return
        self._seen.add(result.uid)
        counts = self._counts
        counts[f"rollouts/{result.status}"] += 1
        counts[f"finish/{result.finish_reason}"] += 1
        if result.failure is not None:
            counts[f"failures/{result.failure.kind}/{result.failure.category}"] += 1
        if result.alignment is not None:
            counts[f"alignment/{result.alignment}"] += 1
        for label, turns in result.drift.items():
            counts[f"drift/{label}"] += turns
        for name in COUNTED:
            if (value := getattr(result, name)) is not None:
                counts[f"{name}/{value}"] += 1
        counts["rollouts/retried"] += result.attempt > 1
        counts["samples"] += len(result.samples)
        counts["turns"] += result.num_llm_calls
        counts["tokens/sampled"] += result.response_tokens
        counts["tokens/prompt"] += result.prompt_tokens
        counts["tools/calls"] += result.num_tool_calls
        counts["tools/errors"] += sum(not tool.ok for turn in result.turns for tool in turn.tools)
        for name, values in self._spans.items():
            values.append(getattr(result.spans, name))
        if versions := sampled_versions(result):
            self._versions.append(min(versions))

    def add_group(self, group: SelectedGroup, verdict: GroupUse) -> bool:
        """Counts a group, and tells whether it can be used; a later verdict on it replaces the one before."""
        usable = verdict is GroupUse.USABLE
        dropped = Counter(group.dropped)
        if not usable:
            dropped[verdict] += len(group.rollouts)
        self._groups[group.name] = (usable, dropped)
        return usable

    def dropped(self) -> Counter[str]:
        """Adds up what was left out of the groups."""
        return sum((dropped for _, dropped in self._groups.values()), start=Counter())

    def summary(self, policy_version: str | int | None) -> dict[str, float]:
        """Makes the flat dict; with the version of the weights in training it has `staleness`."""
        n = len(self)
        figures: dict[str, float] = {"rollouts": n}
        figures |= {f"rollouts/{status}": 0 for status in _ENDS}
        figures |= {f"alignment/{alignment}": 0 for alignment in Alignment}
        figures |= dict.fromkeys(("rollouts/retried", "samples", "turns", "tokens/sampled", "tokens/prompt"), 0)
        figures |= {"tools/calls": 0, "tools/errors": 0}
        figures |= self._counts
        if self._groups:
            usable = sum(usable for usable, _ in self._groups.values())
            figures |= {"groups/usable": usable, "groups/dropped": len(self._groups) - usable}
            figures["groups/refills"] = len(self.refills)
        figures |= {f"dropped/{reason.replace(':', '/')}": number for reason, number in self.dropped().items()}
        figures["turns/mean"] = self._counts["turns"] / max(n, 1)
        figures["tokens/sampled/mean"] = self._counts["tokens/sampled"] / max(n, 1)
        for name, values in self._spans.items():
            ordered = sorted(values)
            figures |= {f"spans/{name}/p{percent}": _percentile(ordered, percent) for percent in (50, 95)}
        if self._versions:
            figures |= {"versions/min": min(self._versions), "versions/max": max(self._versions)}
            now = version_number(None if policy_version is None else str(policy_version))
            if now >= 0:
                ages = [now - version for version in self._versions]
                figures |= {"staleness/mean": sum(ages) / len(ages), "staleness/max": max(ages)}
        return figures


def sampled_versions(result: RolloutResult) -> set[int]:
    """Finds the numbers of the versions that sampled a rollout; those without a number are left out."""
    segments = (segment for sample in result.samples for segment in sample.segments if segment.kind == "sampled")
    return {version_number(segment.policy_version) for segment in segments} - {-1}


def _percentile(ordered: list[float], percent: int) -> float:
    """The nearest rank: the smallest value that `percent` of all do not exceed."""
    return ordered[max(math.ceil(len(ordered) * percent / 100) - 1, 0)] if ordered else 0.0
