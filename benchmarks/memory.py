"""How much memory the pool's processes take: API, worker idle, each tokenizer, each rollout in flight.

    python -m benchmarks.memory [--quick] [--in-flight 500]

Figures are resident set sizes (VmRSS) of real processes, read when they have stopped to grow. The tokenizers are the
committed one and those that `make tokenizers` lays out. The rollouts in flight are calculator rollouts whose trainer
holds its second reply back, so that each has a prompt, a turn and a journal. The trainer runs in this process and is
not counted. A rollout's own memory is the slope between a fifth of the rollouts and all of them, because the first ones
also load code.
"""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from benchmarks.report import Plot, Row, emit, parser

from rolloutpool_common.process.obituaries import new_worker_id
from rolloutpool_common.rendering import load_tokenizer
from rolloutpool_trainer import LocalPool, callback_app
from rolloutpool_trainer.endpoint.policy import GenerateParams, Generation
from rolloutpool_trainer.endpoint.server import serve_callback
from rolloutpool_trainer.testing import ScriptedPolicy, calculator_prompts

TINY = "rolloutpool/tiny"
LAID_OUT = Path(__file__).parents[1] / "build" / "tokenizers"
FAMILIES = ("mistral_nemo", "deepseek_v3", "qwen2_5", "qwen3", "llama3_2", "gemma3")
MB = 1_000_000
REPEATS = 3
PER_ID, PER_LOGPROB = 4 + 4 * 4 / 3, 8 + 8 * 4 / 3
"""Bytes that a token takes: uint32 and float64 in the ledger, and once more in base64 for the journal."""


def rss(pid: int) -> int:
    """Returns the resident bytes of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"process {pid} has ended")


def children(pid: int) -> list[int]:
    """The process' own children."""
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(found) for found in listed.split()]


def settled(pid: int) -> int:
    """Waits until a process grows by less than a megabyte in two seconds; returns its resident bytes."""
    last, since = rss(pid), time.monotonic()
    while time.monotonic() - since < 2:
        time.sleep(0.2)
        now = rss(pid)
        if now > last + MB:
            last, since = now, time.monotonic()
    return rss(pid)


def child(module: str) -> int:
    """Returns the pid of this process' child that runs `python -m module`."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            parent = next(line for line in (entry / "status").read_text().splitlines() if line.startswith("PPid:"))
            command = (entry / "cmdline").read_bytes().split(b"\0")
        except FileNotFoundError:
            continue
        if int(parent.split()[1]) == os.getpid() and module.encode() in command:
            return int(entry.name)
    raise RuntimeError(f"no child runs {module}")


@contextmanager
def worker(pool: LocalPool, tokenizers: str, slots: int = 256) -> Iterator[int]:
    """Returns the pid of a worker process that has announced itself."""
    env = {
        **os.environ,
        "ROLLOUTPOOL_REDIS_URL": pool.redis_url,
        "ROLLOUTPOOL_TOKENIZERS": tokenizers,
        "ROLLOUTPOOL_WORKER_SLOTS": str(slots),
        "ROLLOUTPOOL_LOG_LEVEL": "error",
        "HF_HUB_OFFLINE": "1",
    }
    quiet = subprocess.DEVNULL
    # As its parent starts it.
    command = [sys.executable, "-m", "rolloutpool_worker", "--worker-id", new_worker_id()]
    process = subprocess.Popen(command, env=env, stdout=quiet, stderr=quiet)
    try:
        with pool.client() as client:
            while not any(known["pid"] == process.pid for known in client.workers()):
                if process.poll() is not None:
                    raise RuntimeError("the worker ended while it started")
                time.sleep(0.1)
        yield process.pid
    finally:
        process.kill()
        process.wait()


def in_flight(pool: LocalPool, count: int) -> tuple[int, float]:
    """Of a worker that has `count` rollouts waiting for their second turn: resident bytes, and of tokens in each."""
    tokenizer = load_tokenizer(TINY)
    policy = ScriptedPolicy(tokenizer)

    waiting: set[str] = set()
    measured = False

    async def slow(prompt_ids: list[int], params: GenerateParams) -> Generation:
        if params.turn == 2:
            waiting.add(params.rollout_id)
            while not measured:  # noqa: ASYNC110  it is set by another thread
                await asyncio.sleep(0.5)
        return await policy(prompt_ids, params)

    app = callback_app(slow, tokenizer=tokenizer, tools=pool.url)
    with worker(pool, TINY, slots=2 * count) as pid, serve_callback(app, [0]) as trainer, pool.client() as client:
        prompts = [
            {"messages": [{"role": "user", "content": question}]}
            for question in calculator_prompts(3 * count)
            if "(" in question
        ][:count]
        batch = client.submit(prompts, defaults={"tokenizer_name": TINY}, trainer=trainer.urls)
        while len(waiting) < count:
            time.sleep(0.2)
        size = settled(pid)
        measured = True
        tokens = [
            result.turns[1].prompt_tokens * PER_ID + result.turns[0].sampled_tokens * PER_LOGPROB
            for result in batch.results()
        ]
    return size, sum(tokens) / count


def main() -> None:
    """Measures all of it and prints a table."""
    options = parser("memory", __doc__)
    options.add_argument("--in-flight", type=int, default=500, help="rollouts in flight in one worker")
    chosen = options.parse_args()
    count = 50 if chosen.quick else chosen.in_flight
    rows: list[Row] = []

    def add(what: str, size: float, noise: float | None = None) -> None:
        rows.append({"what": what, "MB": size / MB, "MB ±": None if noise is None else noise / MB})

    with LocalPool(workers=0, flower=False) as pool:
        with worker(pool, "") as pid:
            idle = settled(pid)
        add("worker, idle, no tokenizer", idle)
        laid_out = [] if chosen.quick else [LAID_OUT / name for name in FAMILIES if (LAID_OUT / name).is_dir()]
        for name in [TINY, *map(str, laid_out)]:
            with worker(pool, name) as pid:
                add(f"+ tokenizer {Path(name).name}", settled(pid) - idle)
        sizes = [(in_flight(pool, count // 5), in_flight(pool, count)) for _ in range(1 if chosen.quick else REPEATS)]
        add(f"worker, {count // 5} rollouts in flight", median(few for (few, _), _ in sizes))
        add(f"worker, {count} rollouts in flight", median(full for _, (full, _) in sizes))
        slopes = [(full - few) / (count - count // 5) for (few, _), (full, _) in sizes]
        tokens = median(tokens for _, (_, tokens) in sizes)
        noise = (max(slopes) - min(slopes)) / 2
        add("per rollout in flight", median(slopes), noise)
        add("of which tokens", tokens)
        add("per rollout in flight, beyond its tokens", median(slopes) - tokens, noise)
        rows.insert(0, {"what": "API", "MB": settled(child("rolloutpool_api")) / MB, "MB ±": None})
    emit(
        "memory",
        rows,
        chosen,
        title="Memory",
        measures=(
            "Resident megabytes of one process each. Per rollout in flight: the slope between a fifth of the rollouts "
            "and all of them, each at its second turn with some 700 tokens. The budget is 0.05 MB beyond the tokens."
        ),
        leaves_out=("Redis, the trainer's process, what long conversations and large tool results take, and peaks."),
        plots=(Plot(kind="bar", x="what", y=("MB",), unit="MB resident", log_y=True),),
    )


if __name__ == "__main__":
    main()
