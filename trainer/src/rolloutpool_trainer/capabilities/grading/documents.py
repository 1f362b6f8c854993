"""What `groups` prints with `--json`."""

from pydantic import BaseModel

from rolloutpool_common.capabilities.grading.annotating import GroupStatistics
from rolloutpool_common.protocol.groups import Group


class GroupsDocument(BaseModel):
    """`groups`: of one batch, in order of name."""

    batch_id: str
    of: str
    """The annotation whose spread the statistics have."""
    statistics: list[GroupStatistics]
    """Of all groups."""
    verdicts: list[Group]
    """Of the groups of a batch with a group policy; else empty."""
