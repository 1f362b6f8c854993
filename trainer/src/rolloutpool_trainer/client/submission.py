"""Says what a batch was submitted with, so that some of its rollouts can be submitted again."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

from rolloutpool_common.protocol.batch import RolloutItem
from rolloutpool_common.protocol.result import RolloutResult


@dataclass(frozen=True)
class Submission:
    """The arguments of a `submit`; the caller's own objects, not copies."""

    rollouts: Sequence[RolloutItem | Mapping[str, Any]]
    options: Mapping[str, Any]
    """Keyword arguments that hold for the whole batch."""

    def again(self, results: Sequence[RolloutResult]) -> "Submission":
        """Makes the submission that runs these rollouts of this batch once more, each in its group.

        A rollout id of the caller's is not used twice, so the pool names the new ones.
        """
        items = []
        for result in results:
            # `n` makes several rollouts of one item: it is the last one that begins at this index or before.
            item = self.rollouts[bisect_right(self._starts, result.index) - 1]
            known = item.model_dump(mode="json", exclude_unset=True) if isinstance(item, RolloutItem) else dict(item)
            kept = {key: value for key, value in known.items() if key not in ("n", "rollout_id")}
            items.append(kept if result.group is None else kept | {"group": result.group})
        return Submission(items, self.options)

    @cached_property
    def _starts(self) -> list[int]:
        """Of each item, the index of its first rollout."""
        sizes = (item.n if isinstance(item, RolloutItem) else int(item.get("n", 1)) for item in self.rollouts)
        return [0, *accumulate(sizes)][: len(self.rollouts)]
