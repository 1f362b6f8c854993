"""Redis' own settings that put accepted work at risk: no append-only file, no memory limit, eviction.

The pool runs with all of them, so they are warnings and no errors. docs/operations.md says what each of them means.
`INFO` tells all three; an account may be forbidden to ask, and a hosted Redis may leave fields out.
"""

from collections.abc import Mapping
from typing import Any

from redis.exceptions import ResponseError

from rolloutpool_common.store.errors import store_errors

NO_APPEND_ONLY_FILE = (
    "Redis keeps no append-only file: accepted rollouts and results are lost when it restarts; set `appendonly yes`"
)
NO_MEMORY_LIMIT = (
    "Redis has no memory limit (`maxmemory 0`), so the pool can't refuse work before the machine's memory is full; "
    "set `maxmemory`"
)
EVICTION = (
    "Redis may evict keys (`maxmemory-policy {policy}`), and an evicted key is a lost rollout; "
    "set `maxmemory-policy noeviction`"
)
NOT_CHECKED = "Redis' {what} not checked: this account may not run INFO, or INFO does not tell"


async def find_warnings(redis: Any) -> list[str]:
    """Reads Redis' settings; returns a sentence for each that puts work at risk, with what to do about it."""
    with store_errors():
        persistence = await read_info(redis, "persistence")
        memory = await read_info(redis, "memory")
    found = []
    match persistence.get("aof_enabled"):
        case None:
            found.append(NOT_CHECKED.format(what="append-only file was"))
        case 0:
            found.append(NO_APPEND_ONLY_FILE)
    limit, policy = memory.get("maxmemory"), memory.get("maxmemory_policy")
    if limit is None or policy is None:
        found.append(NOT_CHECKED.format(what="memory limit and eviction policy were"))
    if limit == 0:
        found.append(NO_MEMORY_LIMIT)
    if policy not in (None, "noeviction"):
        found.append(EVICTION.format(policy=policy))
    return found


async def read_info(redis: Any, section: str) -> Mapping[str, Any]:
    """Reads a section of `INFO`; empty where this account may not."""
    try:
        fields: Mapping[str, Any] = await redis.info(section)
    # The account may not run INFO. That is no outage, and the fields count as not told.
    except ResponseError:
        return {}
    return fields
