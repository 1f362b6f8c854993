"""A group policy must be one that a group can meet."""

import pytest
from pydantic import ValidationError

from rolloutpool_common.protocol.groups import GroupPolicy, LateRollouts


def test_late_rollouts_are_kept_unless_the_batch_says_otherwise() -> None:
    assert GroupPolicy(min_usable=6).late is LateRollouts.KEEP
    assert GroupPolicy(size=8, min_usable=8).min_usable == 8


def test_more_usable_rollouts_than_a_group_has_are_refused() -> None:
    with pytest.raises(ValidationError, match="min_usable 9 can't be reached by groups of 8"):
        GroupPolicy(size=8, min_usable=9)
