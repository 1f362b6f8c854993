"""How late the API's event loop is while it takes large bodies, how late `/health` answers, and what memory that takes.

    python -m benchmarks.large_bodies [--quick]

A batch of 1, 10, 40 and 64 MB is posted: as 10,000 rollouts, as one rollout with one message, and as small messages;
then three of 64 MB at once. Meanwhile a timer on the API's loop notes its delay, a client asks for `/health` every
10 ms, and the memory of the API process and its children is added up. The row without a body shows the machine.
"""

import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http.client import HTTPConnection
from pathlib import Path
from tempfile import TemporaryDirectory

import orjson
from benchmarks.local_pool import local_pool
from benchmarks.loop_ticks import read_delays
from benchmarks.memory import child, children, rss
from benchmarks.processes import serving
from benchmarks.report import Plot, Row, emit, parser, spread

from rolloutpool_common.rendering import TINY

SIZES_MB = (1, 10, 40, 64)
ROLLOUTS = 10_000
SHAPES = {"10,000 rollouts": (ROLLOUTS, 1), "one message": (1, 1), "small messages": (1_000, None)}
"""Rollouts and messages in each; None: as many of 20 characters as it takes."""
CONTROL_SECONDS = 3.0
_WORDS = "The quick brown fox jumps over the lazy dog and runs. "


def _body(megabytes: int, rollouts: int, messages: int | None) -> bytes:
    """Makes a batch of about this size, never larger."""
    each = (megabytes * 1_000_000 - 500) // rollouts - 60
    if messages is None:
        messages, each = each // 60, 20
    text = (_WORDS * (each // len(_WORDS) + 1))[:each]
    items = [{"messages": [{"role": "user", "content": text}] * messages} for _ in range(rollouts)]
    defaults = {"tokenizer_name": TINY, "server_url": "http://127.0.0.1:9"}
    return orjson.dumps({"rollouts": items, "defaults": defaults})


class _Watch:
    """Asks for `/health` and adds up memory, in threads, while a block runs."""

    def __init__(self, port: int, pid: int) -> None:
        self._port, self._pid = port, pid
        self._stop = threading.Event()
        self.health: list[float] = []
        self.peak = 0

    @contextmanager
    def running(self) -> Iterator[None]:
        threads = [threading.Thread(target=self._ask), threading.Thread(target=self._weigh)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in threads:
                thread.join()

    def _ask(self) -> None:
        http = HTTPConnection("127.0.0.1", self._port, timeout=120)
        while not self._stop.wait(0.01):
            start = time.perf_counter()
            http.request("GET", "/health")
            http.getresponse().read()
            self.health.append((time.perf_counter() - start) * 1000)
        http.close()

    def _weigh(self) -> None:
        while not self._stop.wait(0.02):
            self.peak = max(self.peak, _memory(self._pid))


def _post(port: int, body: bytes) -> tuple[float, str]:
    """Posts a batch; returns the seconds to its 202, and its path."""
    http = HTTPConnection("127.0.0.1", port, timeout=300)
    start = time.perf_counter()
    http.request("POST", "/v1/batches", body, {"Content-Type": "application/json"})
    response = http.getresponse()
    accepted = response.read()
    seconds = time.perf_counter() - start
    http.close()
    if response.status != 202:
        raise AssertionError(f"{response.status}: {accepted[:500]!r}")
    return seconds, f"/v1/batches/{orjson.loads(accepted)['batch_id']}"


def _remove(port: int, path: str) -> None:
    http = HTTPConnection("127.0.0.1", port, timeout=300)
    for end in (path, f"{path}?purge=true"):
        http.request("DELETE", end)
        http.getresponse().read()
    http.close()


def _memory(pid: int) -> int:
    """Returns the bytes that a process, its children and the bodies which they hold in memory take."""
    total = 0
    for each in (pid, *children(pid)):
        # A child may end at any time.
        with suppress(OSError, RuntimeError):
            total += rss(each)
    with suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            if "memfd:" in os.readlink(link):
                total += link.stat().st_size
    return total


def measure(redis_url: str, sizes_mb: tuple[int, ...], *, at_once: int = 3) -> list[Row]:
    """Returns a row per size and shape, and one for several of the largest at once. Each has an API of its own."""
    cases = [(size, shape, 1) for size in sizes_mb for shape in SHAPES]
    cases.append((sizes_mb[-1], next(iter(SHAPES)), at_once))
    return [_control(redis_url), *(_case(redis_url, size, shape, copies) for size, shape, copies in cases)]


def _control(redis_url: str) -> Row:
    """Measures an API that does nothing for as long as a large body takes."""
    with _api(redis_url) as (port, file):
        watch = _Watch(port, child("benchmarks.probed_api"))
        with watch.running():
            start = time.perf_counter()
            time.sleep(CONTROL_SECONDS)
        delay = spread(read_delays(file, start, start + CONTROL_SECONDS))
    return {
        "what": "no body",
        "202, s": None,
        "loop, ms, p99": delay["ms, p99"],
        "loop, ms, largest": delay["ms, largest"],
        "/health, ms, largest": max(watch.health),
        "memory, MB": watch.peak / 1e6,
        "grown by / the bodies": None,
    }


@contextmanager
def _api(redis_url: str) -> Iterator[tuple[int, Path]]:
    """Runs an API process; yields its port, and the file in which it notes how late its loop is."""
    environment = {"ROLLOUTPOOL_REDIS_URL": redis_url, "ROLLOUT_SERVER_PORT": "0", "ROLLOUTPOOL_LOG_LEVEL": "error"}
    with TemporaryDirectory() as folder:
        file = Path(folder) / "loop"
        with serving("benchmarks.probed_api", str(file), env=environment) as port:
            yield port, file


def _case(redis_url: str, size_mb: int, shape: str, copies: int) -> Row:
    body = _body(size_mb, *SHAPES[shape])
    with _api(redis_url) as (port, file), ThreadPoolExecutor(copies) as pool:
        pid = child("benchmarks.probed_api")
        at_rest = rss(pid)
        watch = _Watch(port, pid)
        with watch.running():
            start = time.perf_counter()
            posted = list(pool.map(lambda _: _post(port, body), range(copies)))
            stop = time.perf_counter()
        late = read_delays(file, start, stop)
        for _, path in posted:
            _remove(port, path)
    grown = watch.peak - at_rest
    delay = spread(late)
    return {
        "what": f"{copies} x {size_mb} MB, {shape}",
        "202, s": max(seconds for seconds, _ in posted),
        "loop, ms, p99": delay["ms, p99"],
        "loop, ms, largest": delay["ms, largest"],
        "/health, ms, largest": max(watch.health),
        "memory, MB": watch.peak / 1e6,
        "grown by / the bodies": grown / (len(body) * copies),
    }


def main() -> None:
    """Measures all sizes, and prints a table."""
    options = parser("large_bodies", __doc__).parse_args()
    with local_pool(workers=1) as pool:
        rows = measure(pool.redis_url, SIZES_MB[:2] if options.quick else SIZES_MB)
    emit(
        "large_bodies",
        rows,
        options,
        title="Large bodies",
        measures=(
            "Milliseconds by which a 5 ms timer on the API's loop fires late from the POST of a batch to its "
            "202; the slowest answer of `/health`, asked for every 10 ms; the most memory (RSS) that the API process "
            "and its children have together, bodies included, and by how many times the bodies' size it has grown."
        ),
        leaves_out=(
            "Networks, TLS, workers that run the rollouts: a client, Redis and the API share the machine's cores, so "
            "waiting for a core counts as delay too."
        ),
        plots=(Plot(kind="bar", x="what", y=("loop, ms, p99", "loop, ms, largest"), unit="ms", log_y=True),),
    )


if __name__ == "__main__":
    main()
