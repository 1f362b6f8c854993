"""What redis-py raises becomes the store's own error, without URL or password."""

import pytest
import redis.exceptions

from rolloutpool_common.store.errors import StoreFull, StoreUnavailable, store_errors


@pytest.mark.parametrize(
    ("raised", "becomes"),
    [
        (redis.exceptions.ConnectionError("redis://:password@host"), StoreUnavailable),
        (redis.exceptions.TimeoutError("password"), StoreUnavailable),
        (redis.exceptions.BusyLoadingError("password"), StoreUnavailable),
        (redis.exceptions.ReadOnlyError("password"), StoreUnavailable),
        (redis.exceptions.OutOfMemoryError("password"), StoreFull),
    ],
)
def test_errors_of_redis_become_ours(raised: Exception, becomes: type[StoreUnavailable] | type[StoreFull]) -> None:
    with pytest.raises(becomes) as caught, store_errors():
        raise raised
    assert "password" not in caught.value.message


def test_other_errors_pass() -> None:
    with pytest.raises(KeyError), store_errors():
        raise KeyError
