"""A part that blocks. Generated from `aio_group.py` by `make generate`; edit that file, not this one."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rolloutpool_trainer.client.results import FinishedRollout
    from rolloutpool_trainer.client.sync_door import SyncDoor


class SyncGradedGroup:
    """Holds what grading adds to a group."""

    __slots__ = ()

    if TYPE_CHECKING:
        name: str
        rollouts: tuple[FinishedRollout, ...]
        _client: SyncDoor

    def annotate(self, rewards: Sequence[float], name: str = "reward") -> None:
        """Keeps what the group's rollouts are worth, for people to look at; a later value wins.

        Args:
            rewards: [n], one for each of `rollouts`, in their order; finite.
            name: Of the figure; lists compare groups by `reward`.

        Raises:
            ValueError: There is another number of rewards than of rollouts.
            BatchRejected: One is not finite, or the name is none; `faults` lists all of it.
            RequestRefused: They would take more memory than a batch's annotations may.
        """
        from rolloutpool_trainer.capabilities.grading import calls

        if len(rewards) != len(self.rollouts):
            raise ValueError(f"group {self.name} has {len(self.rollouts)} rollouts, not {len(rewards)}")
        # Rollouts that were run again are in batches of their own.
        batches: dict[str, dict[int | str, float]] = {}
        for rollout, reward in zip(self.rollouts, rewards, strict=True):
            batches.setdefault(rollout.batch_id, {})[rollout.index] = float(reward)
        for batch_id, values in batches.items():
            for call in calls.annotate(batch_id, {name: values}, {}):
                self._client.ask(call)
