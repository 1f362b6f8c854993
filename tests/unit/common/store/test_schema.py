"""A foreign version of the data is refused with instructions."""

import pytest

from rolloutpool_common.store.schema import SCHEMA_VERSION, ForeignSchema, check_version


def test_our_version_is_read() -> None:
    check_version(SCHEMA_VERSION)


@pytest.mark.parametrize("version", [SCHEMA_VERSION - 1, SCHEMA_VERSION + 1])
def test_another_version_is_refused_and_the_message_says_how_to_go_on(version: int) -> None:
    with pytest.raises(ForeignSchema) as refused:
        check_version(version)
    assert f"schema version {version}" in refused.value.message
    assert "start this version with an empty Redis" in refused.value.message
