"""What the reconciler's looks at workers cost Redis and the process that looks.

    python -m benchmarks.looks [--quick]

Real lifelines are connections; here each worker is listed with a beat, and one client is subscribed to all channels,
because `PUBSUB NUMSUB` costs the same whoever subscribes. "Absent" workers have no subscriber, so their records are
read too, as after the loss of a host.
"""

import asyncio
import subprocess
import tempfile
import time

import redis
import redis.asyncio
from benchmarks.report import Row, emit, parser
from redis.backoff import ConstantBackoff
from redis.retry import Retry
from tests.support.ports import free_port

from rolloutpool_common.store import Store, keys
from rolloutpool_common.store.liveness import LOOK_SECONDS
from rolloutpool_trainer.local.redis_server import find_server


async def _server_cpu_ms(raw: redis.asyncio.Redis) -> float:
    used = await raw.info("cpu")
    return (float(used["used_cpu_user"]) + float(used["used_cpu_sys"])) * 1000


async def measure(url: str, workers: int, absent: int, looks: int) -> Row:
    """Looks so many times at workers of which some are absent."""
    store, raw = Store.open(url), redis.asyncio.Redis.from_url(url)
    await store.ping()
    names = [f"worker-{n:05}-0123456789abcdef" for n in range(workers)]
    await raw.flushall()
    pipe = raw.pipeline(transaction=False)
    for number, name in enumerate(names):
        pipe.zadd(keys.WORKERS, {name: 1_700_000_000_000 + number})
        pipe.hset(keys.worker(name), mapping={"about": "{}", "life": "1", "host": "h", "supervisor": ""})
    await pipe.execute()
    seen = names[absent:]
    subscriber = raw.pubsub()
    for start in range(0, len(seen), 500):
        await subscriber.subscribe(*map(keys.life, seen[start : start + 500]))
    watch = store.watch()
    await watch.look()
    before = await _server_cpu_ms(raw)
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(looks):
        await watch.look()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    server_ms = (await _server_cpu_ms(raw)) - before
    await watch.close()
    await subscriber.aclose()  # type: ignore[no-untyped-call]
    await raw.aclose()
    await store.close()
    return {
        "workers": workers,
        "absent": absent,
        "redis ms per look": round(server_ms / looks, 2),
        "own cpu ms per look": round(cpu * 1000 / looks, 2),
        "wall ms per look": round(wall * 1000 / looks, 2),
        "redis core %": round(server_ms / looks / LOOK_SECONDS / 10, 2),
    }


async def _measure_all(url: str, quick: bool) -> list[Row]:
    # Short enough that no absent worker is declared dead meanwhile.
    cases = [(100, 0), (1000, 0), (1000, 500), (5000, 0)]
    return [await measure(url, n, absent, 20) for n, absent in (cases[:1] if quick else cases)]


def main(argv: list[str] | None = None) -> list[Row]:
    """Measures on a Redis of its own, and writes the report."""
    options = parser("looks", __doc__).parse_args(argv)
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        server = subprocess.Popen(
            [find_server(), "--port", str(port), "--bind", "127.0.0.1", "--dir", folder, "--save", ""],
            stdout=subprocess.DEVNULL,
        )
        try:
            with redis.Redis(port=port, retry=Retry(ConstantBackoff(0.05), 200)) as client:
                client.ping()
            rows = asyncio.run(_measure_all(f"redis://127.0.0.1:{port}/0", options.quick))
        finally:
            server.kill()
            server.wait()
    emit(
        "looks",
        rows,
        options,
        title="Looks at workers",
        measures="What one look of the reconciler costs; it looks four times a second.",
        leaves_out="The lifelines' own PINGs, one a second and worker, and the memory of a connection (20 to 30 kB).",
    )
    return rows


if __name__ == "__main__":
    main()
