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
        (redis.exceptions.InvalidResponse("password"), StoreUnavailable),
        (redis.exceptions.MasterDownError("password"), StoreUnavailable),
        (redis.exceptions.NoPermissionError("password"), StoreUnavailable),
        (RuntimeError("unable to perform operation on <password>; the handler is closed"), StoreUnavailable),
    ],
)
def test_errors_of_redis_become_ours(raised: Exception, becomes: type[StoreUnavailable] | type[StoreFull]) -> None:
    with pytest.raises(becomes) as caught, store_errors():
        raise raised
    assert "password" not in caught.value.message


@pytest.mark.parametrize(
    ("text", "do"),
    [
        ("BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.", "SCRIPT KILL"),
        ("Protocol error: invalid bulk length", "proto-max-bulk-len"),
        ("MISCONF Redis is configured to save RDB snapshots", "disk is full"),
        ("Error running script: @user_script: 1: -MISCONF Errors writing to the AOF file", "disk is full"),
        ("NOREPLICAS Not enough good replicas to write.", "min-replicas-to-write"),
        ("Error running script: -NOPERM this user has no permissions", "ACL SETUSER"),
    ],
)
def test_a_refusal_that_can_pass_says_what_to_do(text: str, do: str) -> None:
    with pytest.raises(StoreUnavailable, match=do), store_errors():
        raise redis.exceptions.ResponseError(text)


def test_a_refused_login_is_no_outage() -> None:
    with pytest.raises(StoreUnavailable, match="refuses the name or password"), store_errors():
        raise redis.exceptions.AuthenticationError("invalid username-password pair or user is disabled")


@pytest.mark.parametrize("text", ["Error 104 while writing. Connection reset by peer.", "(32, 'Broken pipe')"])
def test_a_connection_that_breaks_in_mid_sending_names_the_limits_of_size(text: str) -> None:
    with pytest.raises(StoreUnavailable, match="proto-max-bulk-len"), store_errors():
        raise redis.exceptions.ConnectionError(text)


@pytest.mark.parametrize(
    "error", [KeyError(), RuntimeError("Event loop is closed"), redis.exceptions.ResponseError("WRONGTYPE Operation")]
)
def test_other_errors_pass(error: Exception) -> None:
    with pytest.raises(type(error)), store_errors():
        raise error
