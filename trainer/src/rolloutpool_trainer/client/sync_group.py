"""A group that can be trained. Generated from `aio_group.py` by `make generate`; edit that file, not this one."""

from dataclasses import dataclass, field, fields
from typing import Self

from rolloutpool_trainer.client.groups import SelectedGroup
from rolloutpool_trainer.client.sync_door import SyncDoor
from rolloutpool_trainer.composition import SyncGroupParts


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainableGroup(SyncGroupParts, SelectedGroup):
    """A finished group, as it is trained: `rollouts`, and what was left out."""

    _client: SyncDoor = field(repr=False, compare=False)

    @classmethod
    def of(cls, group: SelectedGroup, client: SyncDoor) -> Self:
        """Makes a group of what was selected."""
        return cls(**{part.name: getattr(group, part.name) for part in fields(SelectedGroup)}, _client=client)
