"""What a batch was submitted with, so that some of its rollouts can be submitted again."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rolloutpool_common.protocol.batch import RolloutItem
from rolloutpool_common.protocol.result import RolloutResult

__all__ = ["Submission", "refill_key"]


@dataclass(frozen=True, slots=True)
class Submission:
    """The arguments of a `submit`; the caller's own objects, not copies."""

    rollouts: Sequence[RolloutItem | Mapping[str, Any]]
    options: Mapping[str, Any]
    """Keyword arguments that hold for the whole batch."""

    def again(self, results: Sequence[RolloutResult]) -> "Submission":
        """Makes the submission that runs these rollouts of this batch once more, each in its group.

        A rollout id of the caller's is not used twice, so the pool names the new ones.
        """
        documents = [
            item.model_dump(mode="json", exclude_unset=True) if isinstance(item, RolloutItem) else dict(item)
            for item in self.rollouts
        ]
        # One entry per rollout, because `n` makes several of one item.
        expanded = [document for document in documents for _ in range(int(document.get("n", 1)))]
        items = []
        for result in results:
            item = {key: value for key, value in expanded[result.index].items() if key not in ("n", "rollout_id")}
            items.append(item if result.group is None else item | {"group": result.group})
        return Submission(items, self.options)


def refill_key(batch_id: str, uids: Sequence[str], attempt: int) -> str:
    """Makes the idempotency key of a refill, so that a trainer that starts again does not run it twice.

    Args:
        batch_id: Of the first batch.
        uids: Of the rollouts that are run again.
        attempt: How often this group was refilled, from 1.
    """
    digest = hashlib.blake2b("\n".join(uids).encode(), digest_size=12).hexdigest()
    return f"refill/{batch_id}/{attempt}/{digest}"
