"""Which API process leads, asked of Redis alone: who holds the lock, and which connection renews it in that name."""

import asyncio
import re
from contextlib import suppress

import redis.exceptions
from tests.chaos.cast import Cast
from tests.chaos.process import Process

LISTEN_SECONDS = 4.0
"""The lock is renewed about once a second; under load this takes longer."""
_COMMAND = re.compile(rb"\[\d+ [\d.]+:(\d+)\] (.*)")


async def leader(cast: Cast) -> Process | None:
    """The API process that reconciles; None where that can't be said just now."""
    with suppress(redis.exceptions.RedisError, OSError, TimeoutError):
        async with asyncio.timeout(LISTEN_SECONDS), cast.client() as client:
            holder = await client.get("rp:leader")
            if holder is None:
                return None
            reader, writer = await asyncio.open_connection(cast.redis_address, cast.redis_port)
            try:
                writer.write(b"MONITOR\r\n")
                async for line in reader:
                    found = _COMMAND.search(line)
                    if found and holder in found[2]:
                        port = int(found[1])
                        return next(
                            (api for api, link in zip(cast.apis, cast.store_links, strict=True) if link.owns(port)),
                            None,
                        )
            finally:
                writer.close()
    return None
