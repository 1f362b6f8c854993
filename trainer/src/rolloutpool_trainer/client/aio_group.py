"""A group that can be trained, for asyncio. `sync_group.py` is generated from this file (`make generate`)."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Self

from rolloutpool_trainer.client import views
from rolloutpool_trainer.client.aio_door import AsyncDoor
from rolloutpool_trainer.client.groups import SelectedGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncTrainableGroup(SelectedGroup):
    """A finished group, as it is trained: `rollouts`, and what was left out."""

    _client: AsyncDoor = field(repr=False, compare=False)

    @classmethod
    def of(cls, group: SelectedGroup, client: AsyncDoor) -> Self:
        """Makes a group of what was selected."""
        return cls(**{part.name: getattr(group, part.name) for part in fields(SelectedGroup)}, _client=client)

    async def annotate(self, rewards: Sequence[float], name: str = "reward") -> None:
        """Keeps what the group's rollouts are worth, for people to look at; a later value wins.

        Args:
            rewards: [n], one for each of `rollouts`, in their order; finite.
            name: Of the figure; lists compare groups by `reward`.

        Raises:
            ValueError: There is another number of rewards than of rollouts.
            BatchRejected: One is not finite, or the name is none; `faults` lists all of it.
            RequestRefused: They would take more memory than a batch's annotations may.
        """
        if len(rewards) != len(self.rollouts):
            raise ValueError(f"group {self.name} has {len(self.rollouts)} rollouts, not {len(rewards)}")
        # Rollouts that were run again are in batches of their own.
        batches: dict[str, dict[int | str, float]] = {}
        for rollout, reward in zip(self.rollouts, rewards, strict=True):
            batches.setdefault(rollout.batch_id, {})[rollout.index] = float(reward)
        for batch_id, values in batches.items():
            for items in views.annotation_items({name: values}, {}):
                await self._client.ask(views.annotate(batch_id, items, secrets.token_hex(8)))
