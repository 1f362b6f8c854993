"""How many turns a second the pool keeps up for long, with so many rollouts in flight, beside an ideal pool.

    python -m benchmarks.sustained [--quick] [--in-flight 20000 --rate 222]

1. Four workers, or more where 2,000 slots each are too few, have as many slots as rollouts are to be in flight. More
   rollouts wait than there are slots, so that each slot that is free gets another one at once. Four trainer addresses
   answer.
2. A model call takes `in flight / rate` seconds on average, from half to one and a half times as long. A pool that
   takes no time itself would so do `rate` turns a second: the ideal.
3. After two such times the pool is steady. The window is as long again, 30 s at least. Trainers count their answers.

The rate is raised, by making calls shorter, until less than 97 % of the ideal is reached. Memory is what the pool's
processes hold at the end of the window, shared pages counted once.
"""

import math
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import orjson
from benchmarks.conversations import VARIANTS, messages, tool_names
from benchmarks.cpu import POOL_ROLES, Usage
from benchmarks.load import Load, TrainerManner
from benchmarks.processes import ENVIRONMENT, ROOT, serving
from benchmarks.report import Row, emit, parser

from rolloutpool_common.rendering import TINY
from rolloutpool_trainer import LocalPool

WORKERS, TRAINERS, TURNS = 4, 4, 4
MOST_SLOTS = 2000
WAITING = 0.25
"""Share of those in flight that wait besides."""
BATCHES = 10
"""So many hold those in flight."""
SPREAD = 0.5
KEPT = 0.97
"""Share of the ideal that counts as kept up."""
WINDOW_SECONDS = 30.0
RATES = {1_000: (11, 100, 200, 300, 400), 5_000: (55, 200, 300, 400), 20_000: (222, 300, 400)}
"""Turns a second to try, by rollouts in flight; the first is that of calls that take 90 s."""


class Trainers:
    """The addresses that are called."""

    def __init__(self, ports: Sequence[int]) -> None:
        self.urls = [f"http://127.0.0.1:{port}" for port in ports]
        self._http = httpx.Client(trust_env=False, timeout=60)

    def answered(self) -> int:
        """How many calls they have answered."""
        return sum(int(self._http.get(f"{url}/answered").text) for url in self.urls)


class Work:
    """Submits and reads, so that always more rollouts are open than there are slots."""

    def __init__(self, url: str, trainers: Trainers, in_flight: int, seconds: float) -> None:
        self._http = httpx.Client(base_url=url, trust_env=False, timeout=120)
        self._trainers, self._in_flight, self._seconds = trainers, in_flight, seconds
        self._stop = threading.Event()
        self._batches: list[str] = []
        self._serial = 0
        self.bad = 0
        """Rollouts that did not complete exactly."""
        self._threads = [threading.Thread(target=self._submit), threading.Thread(target=self._read)]

    def __enter__(self) -> "Work":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self._http.close()

    def _submit(self) -> None:
        size = self._in_flight // BATCHES
        while not self._stop.is_set():
            still_open = self._serial - self._trainers.answered() / TURNS
            if still_open >= self._in_flight * (1 + WAITING):
                self._stop.wait(min(self._seconds / 50, 0.5))
                continue
            accepted = self._http.post("/v1/batches", content=self._body(size))
            accepted.raise_for_status()
            self._batches.append(accepted.json()["batch_id"])

    def _body(self, size: int) -> bytes:
        load = Load(turns=TURNS, in_flight=size, latency_ms=0, rollouts=size)
        low, high = (round(1000 * self._seconds * (1 + sign * SPREAD)) for sign in (-1, 1))
        latency = f"{low}-{high}"
        rollouts = []
        for serial in range(self._serial, self._serial + size):
            parts = TURNS, serial % VARIANTS, 0, latency, TrainerManner.DECLARES, serial
            rollouts.append({"messages": messages(load, serial), "rollout_id": ".".join(map(str, parts))})
        self._serial += size
        defaults = {"tokenizer_name": TINY, "tools": tool_names(load), "max_turns": TURNS, "idempotent": True}
        trainer = {"server_urls": self._trainers.urls}
        return orjson.dumps({"rollouts": rollouts, "defaults": defaults, "trainer": trainer})

    def _read(self) -> None:
        read = 0
        while not self._stop.is_set():
            if read == len(self._batches):
                self._stop.wait(0.2)
                continue
            cursor, complete = "0", False
            while not complete and not self._stop.is_set():
                page = self._http.get(
                    f"/v1/batches/{self._batches[read]}/results",
                    params={"cursor": cursor, "limit": 200, "wait": 2, "format": "ndjson"},
                )
                page.raise_for_status()
                cursor, complete = page.headers["X-Next-Cursor"], page.headers["X-Batch-Complete"] == "true"
                for line in page.content.splitlines():
                    result = orjson.loads(line)["result"]
                    self.bad += (result["status"], result["alignment"]) != ("completed", "exact")
            read += 1


def measure(in_flight: int, rate: float) -> Row:
    """Measures one point."""
    seconds = in_flight / rate
    with ExitStack() as stack:
        trainers = Trainers([stack.enter_context(serving("benchmarks.stub_trainer")) for _ in range(TRAINERS)])
        url = stack.enter_context(_pool(in_flight))
        work = stack.enter_context(Work(url, trainers, in_flight, seconds))
        time.sleep(2 * seconds)
        before, answered, start = Usage(), trainers.answered(), time.perf_counter()
        time.sleep(max(seconds, WINDOW_SECONDS))
        turns, took, used = trainers.answered() - answered, time.perf_counter() - start, Usage()
        spent = used.since(before)
        memory = {role: sum(_held(pid) for pid, of in used.by_process if of == role) for role in POOL_ROLES}
    if work.bad:
        raise AssertionError(f"{work.bad} rollouts did not complete exactly")
    own = sum(spent.get(role, 0.0) for role in POOL_ROLES)
    return {
        "in flight": in_flight,
        "workers": workers_for(in_flight),
        "a call, s": seconds,
        "ideal, turns/s": rate,
        "turns/s": turns / took,
        "of the ideal, %": 100 * turns / took / rate,
        "CPU ms a turn": 1000 * own / turns,
        "cores of the pool": own / took,
        "cores of trainers and client": (spent.get("stub", 0.0) + spent.get("load", 0.0)) / took,
        **{f"{role}, MB": memory[role] / 1e6 for role in POOL_ROLES},
    }


def _held(pid: int) -> int:
    """The bytes that a process holds; what several share counts once among them."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")) * 1024


def workers_for(in_flight: int) -> int:
    """Four worker processes, or as many as it takes: each has at most so many slots."""
    return max(WORKERS, math.ceil(in_flight / MOST_SLOTS))


@contextmanager
def _pool(in_flight: int) -> Iterator[str]:
    env = {
        **ENVIRONMENT,
        "ROLLOUTPOOL_WORKER_SLOTS": str(math.ceil(in_flight / workers_for(in_flight))),
        "ROLLOUTPOOL_PLUGINS": "benchmarks.lookup_plugin",
    }
    (ROOT / "build").mkdir(exist_ok=True)
    with (
        TemporaryDirectory(dir=ROOT / "build", prefix="bench-state-") as state,
        LocalPool(workers_for(in_flight), flower=False, state=state, tokenizers=[TINY], env=env) as pool,
    ):
        yield pool.url


def main() -> None:
    """Measures the matrix, or one point."""
    options = parser("sustained", __doc__)
    options.add_argument("--in-flight", type=int, help="this point only")
    options.add_argument("--rate", type=float, help="turns a second of the ideal at that point")
    chosen = options.parse_args()
    if chosen.in_flight is not None:
        print(measure(chosen.in_flight, chosen.rate or chosen.in_flight / 90))
        return
    rows: list[Row] = []
    for in_flight, rates in RATES.items():
        for rate in rates[-2:-1] if chosen.quick else rates:
            rows.append(measure(in_flight, rate))
            print(rows[-1], flush=True)
            share = rows[-1]["of the ideal, %"]
            if isinstance(share, float) and share < 100 * KEPT:
                break
    emit(
        "sustained",
        rows,
        chosen,
        title="Turns a second for long, by rollouts in flight",
        measures=(
            "Workers have slots for all in flight, {TRAINERS} trainer addresses, {TURNS} turns each, "
            "and more that wait. The ideal is what the calls alone allow. The window begins after two calls' time."
        ),
        leaves_out="A model, networks, drift. Trainers, client and pool share the cores.",
    )


if __name__ == "__main__":
    main()
