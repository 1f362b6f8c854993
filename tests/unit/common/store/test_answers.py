"""What Redis answers, by name."""

import pytest
from tests.support.fake_store import FakeConnection, FakeServer

from rolloutpool_common.store.answers import named, now_ms, to_ms


def test_a_flat_list_becomes_names_and_values() -> None:
    assert named([b"known", 1, b"token", b"t"]) == {"known": 1, "token": b"t"}
    assert named([]) == {}


def test_a_name_without_a_value_is_an_error() -> None:
    with pytest.raises(ValueError, match="shorter"):
        named([b"known"])


async def test_times_are_of_redis_clock_in_milliseconds() -> None:
    assert to_ms((1, 500_000)) == 1500
    connection = FakeConnection(FakeServer())
    assert await now_ms(connection.redis) > to_ms((1_700_000_000, 0))
    await connection.close()
