"""Which settings of Redis become warnings, and what is said where Redis does not tell them."""

from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoPermissionError

from rolloutpool_common.store import StoreUnavailable
from rolloutpool_common.store.redis_settings import find_warnings

SAFE: dict[str, dict[str, Any]] = {
    "persistence": {"aof_enabled": 1},
    "memory": {"maxmemory": 10**9, "maxmemory_policy": "noeviction"},
    "clients": {"connected_clients": 800, "maxclients": 1000},
    "config": {"appendfsync": "always", "tcp-keepalive": "60"},
}


class Informant:
    """Answers INFO and CONFIG GET with the given sections, or raises the given error."""

    def __init__(self, sections: dict[str, Any] | Exception) -> None:
        self._sections = sections

    async def info(self, section: str) -> Any:
        if isinstance(self._sections, Exception):
            raise self._sections
        return self._sections.get(section, {})

    async def config_get(self, name: str) -> Any:
        found = await self.info("config")
        return {name: found[name]} if name in found else {}


async def test_a_safe_redis_has_no_warnings() -> None:
    assert await find_warnings(Informant(SAFE)) == []


@pytest.mark.parametrize(
    ("section", "field", "value", "says"),
    [
        ("persistence", "aof_enabled", 0, "appendonly yes"),
        ("config", "appendfsync", "everysec", "appendfsync everysec"),
        ("config", "tcp-keepalive", "300", "tcp-keepalive 300"),
        ("config", "tcp-keepalive", "0", "tcp-keepalive 0"),
        ("clients", "connected_clients", 801, "801 of 1,000 connections"),
        ("memory", "maxmemory", 0, "maxmemory 0"),
        ("memory", "maxmemory_policy", "volatile-ttl", "maxmemory-policy volatile-ttl"),
    ],
)
async def test_each_risk_is_one_warning(section: str, field: str, value: object, says: str) -> None:
    (warning,) = await find_warnings(Informant({**SAFE, section: {**SAFE[section], field: value}}))
    assert says in warning


@pytest.mark.parametrize(
    "sections",
    [NoPermissionError("this user has no permissions to run the 'info' command"), {"persistence": {}, "memory": {}}],
    ids=["forbidden", "left out"],
)
async def test_what_redis_does_not_tell_is_not_checked(sections: dict[str, Any] | Exception) -> None:
    file, memory = await find_warnings(Informant(sections))
    assert "append-only file was not checked" in file
    assert "memory limit and eviction policy were not checked" in memory


async def test_an_outage_is_no_verdict() -> None:
    with pytest.raises(StoreUnavailable):
        await find_warnings(Informant(RedisConnectionError("gone")))
