"""Says what the rollouts of a batch need of a worker, computed once, at its submission.

What most of them need stands in the batch's hash. Only those that need something else have an entry of their own, so a
batch whose rollouts are alike costs one field, and a plain one nothing.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from rolloutpool_common.protocol.offers import PLUGINS, needs_of, spell
from rolloutpool_common.store.records import NewBatch

SHOWN = 32
"""Different needs of a batch that its state can name."""
_OPTIONS = ("environment", "agent", "tools", "termination_strategy", *(kind.option for kind in PLUGINS))
_WORDS = tuple(f'"{name}"'.encode() for name in _OPTIONS)
"""A rollout whose own fields have none of these words needs what the batch does."""


@dataclass(frozen=True)
class BatchNeeds:
    """The needs of a batch and of its rollouts, spelled."""

    common: str = ""
    """What most of its rollouts need; empty where none needs anything."""
    own: dict[int, str] = field(default_factory=dict)
    """Index -> what this rollout needs instead."""

    @classmethod
    def of(cls, new: NewBatch) -> "BatchNeeds":
        """Computes the needs of a batch that is submitted."""
        shared: dict[str, Any] = orjson.loads(new.shared)
        alike = spell(needs_of(shared))
        each: dict[int, str] = {}
        for index, rollout in enumerate(new.rollouts):
            # To parse the JSON of each rollout would cost a large batch seconds, and few have a word of these.
            if any(word in rollout.overrides for word in _WORDS):
                each[index] = spell(needs_of(_merged(shared, orjson.loads(rollout.overrides))))
        counts = Counter(each.values())
        counts[alike] += len(new.rollouts) - len(each)
        common = counts.most_common(1)[0][0]
        if common != alike:
            each = {index: each.get(index, alike) for index in range(len(new.rollouts))}
        own = {index: needs for index, needs in each.items() if needs != common}
        return cls("" if common == spell(()) and not own else common, own)

    def fields(self) -> list[str | bytes]:
        """Returns field, value, … for the batch's hash; nothing where no rollout needs anything."""
        if not self.common:
            return []
        others = sorted(set(self.own.values()))[:SHOWN]
        return ["needs", self.common, *(("other_needs", orjson.dumps(others)) if others else ())]


def read_needs(fields: Mapping[str, bytes]) -> list[list[str]]:
    """Reads what the rollouts of a batch need; several lists where they differ, at most `SHOWN` beside the common."""
    common = fields.get("needs")
    others: list[str] = orjson.loads(fields.get("other_needs") or b"[]")
    spelled = [*([] if common is None else [common.decode()]), *others]
    return [orjson.loads(one.partition(" ")[2]) for one in spelled]


def _merged(shared: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    return {**shared, **own, "metadata": {**(shared.get("metadata") or {}), **(own.get("metadata") or {})}}
