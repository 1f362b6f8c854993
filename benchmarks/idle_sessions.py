"""What thousands of sessions cost whose programs say nothing for a while, and whether they are in anybody's way.

    python -m benchmarks.idle_sessions [--quick] [--sessions 5000]

1. Plain rollouts are run in an empty pool of one worker.
2. Sessions are opened in it, and each program makes one call, 32 at once. Then nothing is heard of them.
3. Once none holds a slot, the same plain rollouts are run again, and CPU is read for a while in which nothing happens.
4. Some programs go on with a second call, one after the other. Then every session is ended, and must have its sample.
5. A few programs make many calls, rest until no worker has them, and go on: who takes them replays all that was said.
"""

import asyncio
import time
from statistics import median, quantiles
from typing import Any

import httpx
from benchmarks.cpu import Usage
from benchmarks.local_pool import local_pool
from benchmarks.memory import rss
from benchmarks.processes import ROOT, serving
from benchmarks.report import Row, emit, parser

from rolloutpool_common.outcomes import RolloutStatus
from rolloutpool_common.rendering import TINY
from rolloutpool_trainer import Batch, LocalPool, RolloutClient

AT_ONCE = 32
PLAIN = 400
SECOND_CALLS = 100
LONG_SESSIONS, LONG_CALLS, LONG_BYTES = 16, 64, 40_000
QUIET_SECONDS = 10.0
ROLES = ("door", "worker", "redis", "api")
Message = dict[str, Any]
Program = tuple[str, dict[str, str]]
"""Where a program finds its model, and its headers."""


async def _call(client: httpx.AsyncClient, program: Program, messages: list[Message]) -> tuple[float, Message]:
    start = time.perf_counter()
    answer = await client.post(f"{program[0]}/v1/chat/completions", json={"messages": messages}, headers=program[1])
    answer.raise_for_status()
    return time.perf_counter() - start, answer.json()["choices"][0]["message"]


async def _first_calls(programs: list[Program]) -> list[Message]:
    """Has each program make a call; returns what they were told."""
    left, told = iter(enumerate(programs)), [Message()] * len(programs)

    async def some() -> None:
        # httpx is quadratic in the requests that wait for a connection, so each of these has a client of its own.
        async with httpx.AsyncClient(timeout=120, trust_env=False) as client:
            for place, program in left:
                _, told[place] = await _call(client, program, [{"role": "user", "content": f"Program {place}."}])

    await asyncio.gather(*[some() for _ in range(AT_ONCE)])
    return told


async def _second_calls(programs: list[Program], told: list[Message]) -> list[float]:
    async with httpx.AsyncClient(timeout=120, trust_env=False) as client:
        return [
            (
                await _call(
                    client,
                    program,
                    [
                        {"role": "user", "content": f"Program {place}."},
                        told[place],
                        {"role": "tool", "tool_call_id": told[place]["tool_calls"][0]["id"], "content": "38"},
                    ],
                )
            )[0]
            for place, program in enumerate(programs[:SECOND_CALLS])
        ]


async def _long_talks(programs: list[Program], talks: list[list[Message]], calls: int) -> list[float]:
    """Has each program make so many calls behind what was said; returns the seconds of the last ones."""
    async with httpx.AsyncClient(timeout=120, trust_env=False) as client:
        last = []
        for program, messages in zip(programs, talks, strict=True):
            for _ in range(calls):
                seconds, message = await _call(client, program, messages)
                result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "38"}
                messages += [message, result]
            last.append(seconds)
        return last


def _come_back(client: RolloutClient, options: dict[str, Any], url: str) -> tuple[float, float]:
    """Seconds of a call of long sessions, before and after a rest (medians)."""
    question = [{"role": "user", "content": "Talk."}]
    batch = client.submit([{"messages": question}] * LONG_SESSIONS, defaults=options, trainer=[url])
    found = [batch.session(index) for index in range(LONG_SESSIONS)]
    programs = [(one.url, {"authorization": f"Bearer {one.key}"}) for one in found]
    begin = "You say what you do. " * (LONG_BYTES // 21)
    talks: list[list[Message]] = [[{"role": "user", "content": f"{begin}{place}"}] for place in range(LONG_SESSIONS)]
    before = asyncio.run(_long_talks(programs, talks, LONG_CALLS))
    _all_let_go(batch)
    after = asyncio.run(_long_talks(programs, talks, 1))
    for index in range(LONG_SESSIONS):
        batch.end_session(index, reward=0.0)
    assert [len(result.samples) for result in batch.results()] == [1] * LONG_SESSIONS
    return median(before), median(after)


def _rate(client: RolloutClient, url: str, tokenizer: str) -> float:
    """Plain rollouts a second."""
    question = [{"role": "user", "content": "Add numbers."}]
    options = {"tokenizer_name": tokenizer, "allow_unverified": True, "tools": ["add"], "max_turns": 3}
    start = time.perf_counter()
    client.submit([{"messages": question}] * PLAIN, defaults=options, trainer=[url]).wait()
    return PLAIN / (time.perf_counter() - start)


def _all_let_go(batch: Batch) -> None:
    while batch.status().counts.get(RolloutStatus.RUNNING, 0):
        time.sleep(0.1)


def measure(pool: LocalPool, trainer: int, sessions: int, tokenizer: str) -> Row:
    """Measures one number of sessions."""
    url = f"http://127.0.0.1:{trainer}"
    defaults = {
        "tokenizer_name": tokenizer,
        "allow_unverified": True,
        "idempotent": True,
        "max_tokens_total": 1_000_000,
        "harness": {"external": True, "idle_seconds": 3600},
    }
    with pool.client() as client:
        _rate(client, url, tokenizer)
        empty = _rate(client, url, tokenizer)
        worker = next(pid for pid, role in Usage().by_process if role == "worker" and rss(pid) > 0)
        memory = rss(worker)
        question = [{"role": "user", "content": "Wait."}]
        batch = client.submit([{"messages": question}] * sessions, defaults=defaults, trainer=[url])
        found = [batch.session(index) for index in range(sessions)]
        programs = [(one.url, {"authorization": f"Bearer {one.key}"}) for one in found]
        start = time.perf_counter()
        told = asyncio.run(_first_calls(programs))
        called = time.perf_counter() - start
        _all_let_go(batch)
        let_go = time.perf_counter() - start - called
        beside = _rate(client, url, tokenizer)
        before = Usage()
        time.sleep(QUIET_SECONDS)
        spent = Usage().since(before)
        grown = rss(worker) - memory
        again = asyncio.run(_second_calls(programs, told))
        for index in range(sessions):
            batch.end_session(index, reward=0.0)
        results = list(batch.results())
        before_rest, after_rest = _come_back(client, defaults, url)
    assert [len(result.samples) for result in results] == [1] * sessions
    return {
        "sessions": sessions,
        "first calls / s": sessions / called,
        "s until none has a slot": let_go,
        "plain rollouts / s, before": empty,
        "beside": beside,
        **{f"CPU, ms / s, {role}": spent.get(role, 0.0) * 1000 / QUIET_SECONDS for role in ROLES},
        "worker's memory, MB": grown / 1_000_000,
        "second call, p50, ms": median(again) * 1000,
        "p99, ms": quantiles(again, n=100)[-1] * 1000,
        f"call {LONG_CALLS}, p50, ms": before_rest * 1000,
        "after a rest, p50, ms": after_rest * 1000,
    }


def main() -> None:
    """Measures an empty pool beside a full one, and prints a table."""
    options = parser("idle_sessions", __doc__)
    options.add_argument("--sessions", type=int, default=5000)
    chosen = options.parse_args()
    real = ROOT / "build" / "tokenizers" / "qwen3"
    tokenizer = str(real) if real.is_dir() else TINY
    with (
        serving("benchmarks.program_trainer", tokenizer) as trainer,
        local_pool(workers=1, door=True, tokenizer=tokenizer) as pool,
    ):
        row = measure(pool, trainer, 300 if chosen.quick else chosen.sessions, tokenizer)
    emit(
        "idle_sessions",
        [row],
        chosen,
        title="Sessions whose programs say nothing",
        measures=(
            "One worker. Each program makes one call, and is then silent; none of them holds a slot. Plain rollouts of "
            "three turns are run before and beside them. CPU is that of ten seconds in which nothing happens. Second "
            "calls come one after the other, to sessions that no worker has."
        ),
        leaves_out="A model, networks.",
    )


if __name__ == "__main__":
    main()
