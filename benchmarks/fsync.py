"""The cost of `appendfsync always`, the default here: Redis answers a write only when it is on disk.

    python -m benchmarks.fsync [--quick] [--folder DIR]

Each policy does the same work on a Redis of its own, whose file lies in DIR (default: the folder for temporary files).
"""

import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis
from benchmarks.report import Plot, Row, emit, parser
from redis.backoff import ConstantBackoff
from redis.retry import Retry
from tests.support.ports import free_port

from rolloutpool_common.rendering import load_tokenizer
from rolloutpool_trainer import LocalPool, callback_app
from rolloutpool_trainer.endpoint.server import serve_callback
from rolloutpool_trainer.local.redis_server import find_server
from rolloutpool_trainer.testing import ScriptedPolicy, calculator_prompts

TINY = "rolloutpool/tiny"
POLICIES = ("always", "everysec", "no")
WRITES = 2000


@contextmanager
def server(policy: str, folder: Path) -> Iterator[int]:
    """Runs a Redis with this policy while the block runs; yields its port."""
    port = free_port()
    options = {"port": port, "bind": "127.0.0.1", "dir": folder, "save": "", "appendonly": "yes", "appendfsync": policy}
    command = [find_server(), *(str(part) for name, value in options.items() for part in (f"--{name}", value))]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        yield port
    finally:
        process.terminate()
        process.wait()


def write_ms(port: int) -> tuple[float, float]:
    """Times writes one after the other; returns the median and the 99th percentile of one."""
    times = []
    # It answers a moment after it was started.
    with redis.Redis(port=port, retry=Retry(ConstantBackoff(0.05), 200)) as client:
        client.ping()
        for number in range(WRITES):
            start = time.perf_counter()
            client.rpush("benchmark", b"x" * 500 + str(number).encode())
            times.append((time.perf_counter() - start) * 1000)
        client.delete("benchmark")
    return statistics.median(times), statistics.quantiles(times, n=100)[98]


def rollouts_per_second(port: int, count: int) -> float:
    """Runs whole rollouts, all in flight at once, and returns the rate."""
    tokenizer = load_tokenizer(TINY)
    with LocalPool(workers=2, flower=False, redis_url=f"redis://127.0.0.1:{port}/0", tokenizers=[TINY]) as pool:
        app = callback_app(ScriptedPolicy(tokenizer), tokenizer=tokenizer, tools=pool.url)
        asks = [{"messages": [{"role": "user", "content": text}]} for text in calculator_prompts(count)]
        with serve_callback(app, [0]) as served, pool.client() as client:
            start = time.perf_counter()
            batch = client.submit(asks, defaults={"tokenizer_name": TINY}, trainer=served.url)
            done = sum(1 for _ in batch.results())
            assert done == count
            return count / (time.perf_counter() - start)


def file_system(folder: Path) -> str:
    """Returns the type of the file system of a folder; on `tmpfs` nothing ever reaches a disk."""
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    return max((mount for mount in mounts if folder.resolve().is_relative_to(mount[0])), key=lambda m: len(m[0]))[1]


def measure(policy: str, where: Path | None, rollouts: int) -> tuple[float, float, float, str]:
    """Runs one round of one policy. Returns median and 99th percentile of one write in ms, rollouts/s, file system."""
    with tempfile.TemporaryDirectory(dir=where) as folder, server(policy, Path(folder)) as port:
        return *write_ms(port), rollouts_per_second(port, rollouts), file_system(Path(folder))


def main() -> None:
    """Prints a table."""
    options = parser("fsync", __doc__)
    options.add_argument("--folder", type=Path)
    arguments = options.parse_args()
    rollouts, rounds = (50, 1) if arguments.quick else (1000, 5)
    measured: dict[str, list[tuple[float, float, float, str]]] = {policy: [] for policy in POLICIES}
    for _ in range(rounds):
        # In turn, so that a machine that is busy for a while is busy for all of them.
        for policy in POLICIES:
            measured[policy].append(measure(policy, arguments.folder, rollouts))
    rows: list[Row] = []
    for policy, found in measured.items():
        writes, late, rates, systems = zip(*found, strict=True)
        rows.append(
            {
                "appendfsync": policy,
                "one write, ms, p50": statistics.median(writes),
                "one write, ms, p99": statistics.median(late),
                "rollouts/s": statistics.median(rates),
                "file system": systems[0],
            }
        )
    emit(
        "fsync",
        rows,
        arguments,
        title="What `appendfsync always` costs",
        measures=(
            "One write of 500 bytes after the other on one connection, and whole calculator rollouts through API, two "
            "workers and callback, all in flight at once, with a model that takes no time: nothing hides the price. "
            "Medians of five rounds in which the policies take turns."
        ),
        leaves_out="The machine's disk decides: compare the rows, not machines.",
        plots=[Plot(kind="bar", x="appendfsync", y=("rollouts/s",), unit="rollouts/s")],
    )


if __name__ == "__main__":
    main()
