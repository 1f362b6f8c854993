"""The tests' Redis is real, recent enough, and empty at the start of each test."""

import pytest
import redis

KEY = "left-behind"


@pytest.mark.parametrize("run", ["first", "second"])
def test_each_test_gets_an_empty_server(redis_url: str, run: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        assert client.dbsize() == 0
        client.set(KEY, run)
        assert client.dbsize() == 1


def test_the_server_refuses_rather_than_evicts_and_is_no_older_than_the_floor(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url, decode_responses=True) as client:
        version = tuple(int(part) for part in client.info("server")["redis_version"].split("."))
        assert version >= (6, 2)
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
