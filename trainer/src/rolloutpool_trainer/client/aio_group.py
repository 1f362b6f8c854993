"""A group that can be trained, for asyncio. `sync_group.py` is generated from this file (`make generate`)."""

from dataclasses import dataclass, field, fields
from typing import Self

from rolloutpool_trainer.client.aio_door import AsyncDoor
from rolloutpool_trainer.client.groups import SelectedGroup
from rolloutpool_trainer.composition import AsyncGroupParts


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncTrainableGroup(AsyncGroupParts, SelectedGroup):
    """A finished group, as it is trained: `rollouts`, and what was left out."""

    _client: AsyncDoor = field(repr=False, compare=False)

    @classmethod
    def of(cls, group: SelectedGroup, client: AsyncDoor) -> Self:
        """Makes a group of what was selected."""
        return cls(**{part.name: getattr(group, part.name) for part in fields(SelectedGroup)}, _client=client)
