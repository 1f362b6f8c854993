"""What an offender costs the rollouts beside it, in the same worker process.

    python -m benchmarks.neighbours [--quick]

Each run is a pair, one after the other, in the same pool with one worker: rollouts beside an offender that behaves, and
the same rollouts beside one that does not. The offender submits one rollout after the other as long as the run lasts.
"""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

import orjson
from benchmarks.conversations import messages, rollout_id, tool_names
from benchmarks.load import Load
from benchmarks.local_pool import local_pool
from benchmarks.neighbours_plugin import SPIN, TAKE
from benchmarks.processes import serving
from benchmarks.report import Row, emit, parser, spread

from rolloutpool_common.protocol.turn_headers import HEADER_KEEPS_IDS
from rolloutpool_common.rendering import TINY, load_tokenizer
from rolloutpool_trainer import LocalPool

IN_FLIGHT = 16
LOAD = Load(turns=4, in_flight=IN_FLIGHT, latency_ms=50, rollouts=300)
ROUNDS = 3
MOST = 2.0
"""The promise: p99 beside an offender, as a multiple of p99 beside one that behaves."""
ENVIRONMENT = {"ROLLOUTPOOL_PLUGINS": "benchmarks.neighbours_plugin", "ROLLOUTPOOL_WORKER_SLOTS": str(IN_FLIGHT + 1)}
QUESTION = [{"role": "user", "content": "Do your worst."}]


@dataclass(frozen=True)
class Offence:
    """What the offender's policy calls in its only turn."""

    name: str
    calls: int
    tool: str
    arguments: Any


BEHAVES = Offence("behaves", 1, "add", {"a": 1, "b": 2})
OFFENCES = (
    Offence("10,000 tool calls in one reply", 10_000, "add", {"a": 1, "b": 2}),
    Offence("a tool argument of 10 MB", 1, "add", {"a": "x" * 10_000_000, "b": 2}),
    Offence("an argument of 3.3 MB that is 190,000 objects", 1, "add", [{"a": n} for n in range(190_000)]),
    Offence("an isolated tool that takes 2 GB", 1, TAKE, {}),
    Offence("an isolated tool that spins", 1, SPIN, {}),
)


def _reply(offence: Offence) -> bytes:
    """Returns the HTTP response of the offender's trainer, which is made once."""
    tokenizer = load_tokenizer(TINY)
    ids = tokenizer.encode("calling")
    function = {"name": offence.tool, "arguments": offence.arguments}
    calls = [{"id": f"call{n:05d}", "type": "function", "function": function} for n in range(offence.calls)]
    document = {
        "id": "c",
        "created": 1,
        "choices": [
            {"message": {"role": "assistant", "content": "", "tool_calls": calls}, "finish_reason": "tool_calls"}
        ],
        "token_ids": ids,
        "logprobs": [-0.5] * len(ids),
        "prompt_token_ids": tokenizer.render_prompt(QUESTION),
    }
    body = orjson.dumps(document)
    # As the others' trainer: the pool need not count what rendering the history again would give.
    head = f"HTTP/1.1 200 OK\r\n{HEADER_KEEPS_IDS}: true\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
    return head.encode() + body


@contextmanager
def _trainer(reply: bytes) -> Iterator[str]:
    """Serves this reply to every request, in a thread; yields the address."""
    loop = asyncio.new_event_loop()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        _, _, rest = head.partition(b"content-length:")
        await reader.readexactly(int(rest.partition(b"\r\n")[0] or 0))
        writer.write(reply)
        await writer.drain()
        writer.close()

    server = loop.run_until_complete(asyncio.start_server(answer, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.run_until_complete(asyncio.sleep(0))
        server.close()
        loop.close()


@dataclass(frozen=True)
class _Run:
    rollouts_ms: list[float]
    """Wall time of each rollout of the others, from claim to end."""
    offences: int


def _run(pool: LocalPool, stub: str, load: Load, offence: Offence) -> _Run:
    ended = threading.Event()
    offences = 0
    defaults = {"tokenizer_name": TINY, "max_turns": 1}

    def offend(trainer: str) -> None:
        nonlocal offences
        with pool.client(timeout=120) as client:
            while not ended.is_set():
                list(
                    client.submit(
                        [{"messages": QUESTION}], defaults=defaults, run="offender", trainer=[trainer]
                    ).results()
                )
                offences += 1

    with _trainer(_reply(offence)) as trainer, pool.client(timeout=300) as client:
        offender = threading.Thread(target=offend, args=(trainer,))
        offender.start()
        try:
            # The first offence loads what only it needs: a child process, for example.
            while not offences:
                time.sleep(0.01)
            asked = [{"rollout_id": rollout_id(load, n), "messages": messages(load, n)} for n in range(load.rollouts)]
            shared = {"tokenizer_name": TINY, "tools": tool_names(load), "max_turns": load.turns}
            results = list(client.submit(asked, defaults=shared, run="others", trainer=[stub]).results())
        finally:
            ended.set()
            offender.join()
    clean = [result for result in results if result.status == "completed" and result.alignment == "exact"]
    if len(clean) != load.rollouts:
        raise AssertionError(f"{len(clean)} of {load.rollouts} rollouts beside an offender were completed and proved")
    return _Run([result.spans.total_ms for result in clean], offences)


def measure(pool: LocalPool, load: Load, rounds: int, offences: tuple[Offence, ...] = OFFENCES) -> list[Row]:
    """Measures the pool's one worker; a row for each offence."""
    rows: list[Row] = []
    with serving("benchmarks.stub_trainer", "--tokenizer", TINY) as port:
        stub = f"http://127.0.0.1:{port}"
        for offence in offences:
            pairs = [(_run(pool, stub, load, BEHAVES), _run(pool, stub, load, offence)) for _ in range(rounds)]
            rows.append(_row(offence, load, pairs))
    return rows


def _row(offence: Offence, load: Load, pairs: list[tuple[_Run, _Run]]) -> Row:
    before, beside = (
        [float(spread(run.rollouts_ms)["ms, p99"] or 0) for run in runs] for runs in zip(*pairs, strict=True)
    )
    return {
        "offender": offence.name,
        "rollouts": load.rollouts,
        "pairs": len(pairs),
        "offences": sum(pair[1].offences for pair in pairs),
        "ms, p99, beside one that behaves": median(before),
        "ms, p99, beside the offender": median(beside),
        "ratio": median(b / a for a, b in zip(before, beside, strict=True)),
    }


def main() -> None:
    """Measures one worker."""
    options = parser("neighbours", __doc__).parse_args()
    load = LOAD.with_rollouts(60) if options.quick else LOAD
    with local_pool(workers=1, env=ENVIRONMENT) as pool:
        rows = measure(pool, load, 1 if options.quick else ROUNDS)
    emit(
        "neighbours",
        rows,
        options,
        title="Rollouts beside an offender",
        measures=(
            f"Wall time of rollouts with {LOAD.turns} turns, from claim to end, p99; {IN_FLIGHT} at once in one "
            f"worker, whose model takes {LOAD.latency_ms} ms per turn. Beside them an offender runs one rollout after "
            "the other, in the same process. In each pair the same rollouts run beside an offender that behaves (it "
            "adds two numbers), and then beside the real one. The ratio is the pairs' median; the promise is "
            f"{MOST:.0f}."
        ),
        leaves_out=(
            "Offenders that several callers send at once. A trainer of the offender's that does not say that it keeps "
            "sampled ids: then the pool tokenises the 10 MB, which takes 17 s and 1.6 GB in a thread. What the API and "
            "the offender's own trainer take of the two cores."
        ),
    )


if __name__ == "__main__":
    main()
