"""Redis' own settings that put accepted work at risk, and its connections, of which a pool that grows needs more.

The pool runs with all of them, so they are warnings and no errors. docs/operations.md says what each of them means.
`INFO` and `CONFIG GET` tell them; an account may be forbidden to ask, and a hosted Redis may leave fields out.
"""

from collections.abc import Mapping
from typing import Any

from redis.exceptions import ResponseError

from rolloutpool_common.store.errors import store_errors

NO_APPEND_ONLY_FILE = (
    "Redis keeps no append-only file: accepted rollouts and results are lost when it restarts; set `appendonly yes`"
)
LATE_TO_DISK = (
    "Redis writes its file later than it answers (`appendfsync {policy}`): when its machine dies, the last second of "
    "accepted rollouts and results is lost; set `appendfsync always`"
)
FEW_CONNECTIONS = (
    "Redis has {now:,} of {most:,} connections (`maxclients`); one that is refused stops its process. Raise it, or run "
    "fewer worker processes with more slots"
)
CROWDED = 0.8
"""From this share of its connections on there is hardly room for another machine of workers."""
LATE_TO_NOTICE = (
    "Redis notices late that a host is gone (`tcp-keepalive {seconds}`): its rollouts wait a minute before they go on "
    "elsewhere; set `tcp-keepalive 5`"
)
SEEN_SECONDS = 60
"""Redis closes the connections of a host that is gone so long after its last word, and half as much."""
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
        clients = await read_info(redis, "clients")
        policy_of_file = await _read_setting(redis, "appendfsync")
        keepalive = await _read_setting(redis, "tcp-keepalive")
    found = []
    match persistence.get("aof_enabled"):
        case None:
            found.append(NOT_CHECKED.format(what="append-only file was"))
        case 0:
            found.append(NO_APPEND_ONLY_FILE)
        case _ if policy_of_file not in (None, "always"):
            found.append(LATE_TO_DISK.format(policy=policy_of_file))
    limit, policy = memory.get("maxmemory"), memory.get("maxmemory_policy")
    if limit is None or policy is None:
        found.append(NOT_CHECKED.format(what="memory limit and eviction policy were"))
    if limit == 0:
        found.append(NO_MEMORY_LIMIT)
    if policy not in (None, "noeviction"):
        found.append(EVICTION.format(policy=policy))
    if keepalive is not None and not 0 < int(keepalive) <= SEEN_SECONDS:
        found.append(LATE_TO_NOTICE.format(seconds=keepalive))
    now, most = clients.get("connected_clients", 0), clients.get("maxclients", 0)
    if most and now > CROWDED * most:
        found.append(FEW_CONNECTIONS.format(now=now, most=most))
    return found


async def _read_setting(redis: Any, name: str) -> str | None:
    """Reads a setting; None where this account may not, as on most hosted servers."""
    try:
        return dict(await redis.config_get(name)).get(name)
    except ResponseError:
        return None


async def read_info(redis: Any, section: str) -> Mapping[str, Any]:
    """Reads a section of `INFO`; empty where this account may not."""
    try:
        fields: Mapping[str, Any] = await redis.info(section)
    # The account may not run INFO. That is no outage, and the fields count as not told.
    except ResponseError:
        return {}
    return fields
