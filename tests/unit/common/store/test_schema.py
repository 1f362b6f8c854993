"""One version of the data is ours; each other one is refused with the way out."""

import pytest

from rolloutpool_common.store.schema import SCHEMA_VERSION, ForeignSchema, check_version


def test_our_version_passes() -> None:
    check_version(SCHEMA_VERSION)


@pytest.mark.parametrize("version", [1, SCHEMA_VERSION + 1])
def test_another_version_is_refused_and_the_message_says_how_to_go_on(version: int) -> None:
    with pytest.raises(ForeignSchema) as caught:
        check_version(version)
    message = caught.value.message
    assert f"version {version}" in message
    assert f"version {SCHEMA_VERSION}" in message
    for step in ("finish or cancel its running batches", "read the finished results", "ROLLOUTPOOL_REDIS_URL"):
        assert step in message
