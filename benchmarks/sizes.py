"""What one Redis holds and stands: bytes a rollout in each state, beats of many workers, and turns a second.

    python -m benchmarks.sizes [--quick] [--folder DIR]

1. Rollouts are taken through their life by script, with records and results of two sizes, and Redis' memory and its
   append-only file are read after each step. What grows with the size is told apart from what each rollout costs.
2. 1,000 and 10,000 workers are announced and beat. CPU of Redis, and how long the API takes to read the list of them.
3. What a store sends Redis for the turns of many rollouts is recorded on its way, as bytes. The same bytes are then
   sent again to an empty Redis as fast as it takes them, so that nothing of ours but its scripts is measured.
"""

import asyncio
import secrets
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import redis
import uvloop
from benchmarks.fsync import server
from benchmarks.report import Row, emit, parser

from rolloutpool_common.store import NewBatch, NewRollout, Store
from rolloutpool_common.store.announcements import Announcement
from rolloutpool_common.store.connection import Connection
from rolloutpool_common.store.workers import BEAT_SECONDS, Beat

AT_ONCE = 100
TOKEN = "t" * 16
BATCH = "b" + "0" * 32
TURNS = 3
SIZES = (1_000, 9_000)
"""Bytes of a prompt, of each record (two a turn), and of a result."""
WORKERS = (1_000, 10_000)
PIECE = 1_000_000


async def _submit(store: Store, rollouts: int, size: int) -> None:
    spec = {"server_url": "http://127.0.0.1:9", "tokenizer_name": "rolloutpool/tiny", "sampling_params": {}}
    text = _noise(size)
    item = NewRollout(
        rollout_id=None,
        overrides=b'{"messages":[{"role":"user","content":"' + text + b'"}]}',
        deadline_s=600.0,
    )
    await store.batches.submit(
        NewBatch(batch_id=BATCH, owner="guest", shared=orjson.dumps(spec), rollouts=[item] * rollouts)
    )


def _noise(size: int) -> bytes:
    """Text that hardly compresses, as ids and log-probabilities do."""
    return secrets.token_hex(size // 2).encode()


async def _each(rollouts: int, call: Callable[[int], Any]) -> None:
    for begin in range(0, rollouts, AT_ONCE):
        await asyncio.gather(*(call(index) for index in range(begin, min(begin + AT_ONCE, rollouts))))


async def _claim(connection: Connection, rollouts: int) -> None:
    await _each(rollouts, lambda index: connection.script("claim", BATCH, index, "w", "shared", TOKEN))


async def _turns(connection: Connection, rollouts: int, size: int) -> None:
    """Runs what a worker runs for each turn: that a call begins, the record of its answer, and that of its tools."""
    record = _noise(size)
    for turn in range(TURNS):
        await _each(rollouts, lambda index: connection.script("calling", f"{BATCH}-{index}", TOKEN))
        for number in (2 * turn, 2 * turn + 1):
            about = (TOKEN, number, turn, record)
            await _each(rollouts, lambda index, told=about: connection.joined("journal", f"{BATCH}-{index}", *told))  # type: ignore[misc]


async def _finish(connection: Connection, rollouts: int, size: int) -> None:
    result = _noise(size)
    figures = ("sampled", 9, "tokens", 99, "turns", TURNS, "alignment:exact", 1, "drift:none", TURNS)
    end = (TOKEN, "completed", b"", result, b"[1]", b"", *figures)
    await _each(rollouts, lambda index: connection.script("finish", BATCH, index, *end))


async def _states(url: str, rollouts: int, size: int) -> dict[str, tuple[float, float]]:
    """Takes rollouts through their states; returns bytes of memory and of the file for each, in each state."""
    store, connection = Store.open(url), Connection(url)
    await connection.redis.flushdb()

    async def held() -> tuple[float, float]:
        memory = await connection.redis.info("memory")
        persistence = await connection.redis.info("persistence")
        return float(memory["used_memory_dataset"]), float(persistence["aof_current_size"])

    begun = await held()
    found: dict[str, tuple[float, float]] = {}

    async def note(state: str) -> None:
        now = await held()
        found[state] = ((now[0] - begun[0]) / rollouts, (now[1] - begun[1]) / rollouts)

    await _submit(store, rollouts, size)
    await note("queued")
    await _claim(connection, rollouts)
    await _turns(connection, rollouts, size)
    await note(f"running, after {TURNS} turns")
    await _finish(connection, rollouts, size)
    await note("ended")
    await connection.close()
    await store.close()
    return found


def states(folder: Path | None, rollouts: int) -> list[Row]:
    """Returns a row per state: what a rollout costs, and what each byte of its prompt, records and result does."""
    with tempfile.TemporaryDirectory(dir=folder) as where, server("no", Path(where)) as port:
        small, large = (uvloop.run(_states(f"redis://127.0.0.1:{port}/0", rollouts, size)) for size in SIZES)
    rows: list[Row] = []
    parts = {"queued": 1, f"running, after {TURNS} turns": 1 + 2 * TURNS, "ended": 2}
    for state, here in small.items():
        slopes = [(b - a) / (SIZES[1] - SIZES[0]) for a, b in zip(here, large[state], strict=True)]
        rows.append(
            {
                "state": state,
                "memory, bytes besides content": here[0] - slopes[0] * SIZES[0],
                "memory a byte of content": slopes[0] / parts[state],
                "file, bytes besides content": here[1] - slopes[1] * SIZES[0],
            }
        )
    return rows


async def _crowd(url: str, workers: int) -> Row:
    """Announces workers and has them beat; returns what that costs."""
    store, connection = Store.open(url), Connection(url)
    await connection.redis.flushdb()
    about: dict[str, Any] = {"host": "h", "pid": 1, "slots": 256, "tools": [], "agents": ["tool_calls"]}
    about |= {"termination_strategies": ["task_completion"], "tokenizers": {}, "versions": {"rolloutpool-worker": "0"}}
    empty = int((await connection.redis.info("memory"))["used_memory_dataset"])
    await _each(workers, lambda index: store.workers.announce(f"vm-{index:016x}", Announcement(**about)))
    held = int((await connection.redis.info("memory"))["used_memory_dataset"]) - empty
    before = await _cpu(connection)
    for _ in range(3):
        beats = [Beat(running=100, tokenizers={}).arguments(f"vm-{index:016x}") for index in range(workers)]
        await _each(workers, lambda index, told=beats: connection.script("beat", *told[index]))  # type: ignore[misc]
    beat = (await _cpu(connection) - before) / (3 * workers)
    begun, listed = time.perf_counter(), await store.workers.listed()
    row: Row = {
        "workers": len(listed.workers),
        "memory a worker, bytes": held / workers,
        "a beat, CPU us of Redis": beat,
        "all beats, share of Redis": beat * workers / BEAT_SECONDS / 1e6,
        "to read the list, ms": (time.perf_counter() - begun) * 1000,
    }
    await connection.close()
    await store.close()
    return row


async def _cpu(connection: Connection) -> float:
    """Microseconds of CPU that Redis has used since its start."""
    used: dict[str, float] = await connection.redis.info("cpu")
    return 1e6 * (used["used_cpu_user"] + used["used_cpu_sys"])


def crowds(folder: Path | None) -> list[Row]:
    """Returns a row per number of workers."""
    with tempfile.TemporaryDirectory(dir=folder) as where, server("no", Path(where)) as port:
        return [uvloop.run(_crowd(f"redis://127.0.0.1:{port}/0", workers)) for workers in WORKERS]


class Recorder:
    """Passes commands on to Redis, and keeps them whole, in the order in which their last byte came."""

    def __init__(self, port: int) -> None:
        self.commands: list[bytes] = []
        self._port = port

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serves one connection."""
        answers, to_redis = await asyncio.open_connection("127.0.0.1", self._port)
        back = asyncio.create_task(self._back(answers, writer))
        try:
            while command := await _command(reader):
                self.commands.append(command)
                to_redis.write(command)
                await to_redis.drain()
        except asyncio.IncompleteReadError:
            pass
        finally:
            back.cancel()
            to_redis.close()
            writer.close()

    @staticmethod
    async def _back(answers: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await answers.read(PIECE):
            writer.write(data)
            await writer.drain()


async def _command(reader: asyncio.StreamReader) -> bytes:
    """Reads a command as clients write it: a list of byte strings."""
    head = await reader.readline()
    if not head:
        return b""
    parts = [head]
    for _ in range(int(head[1:])):
        size = await reader.readline()
        parts += [size, await reader.readexactly(int(size[1:]) + 2)]
    return b"".join(parts)


async def _recorded(port: int, rollouts: int) -> list[bytes]:
    """Returns what a store sends for the turns of rollouts that were claimed before."""
    recorder = Recorder(port)
    proxy = await asyncio.start_server(recorder, "127.0.0.1", 0)
    store = Store.open(f"redis://127.0.0.1:{port}/0")
    connection = Connection(f"redis://127.0.0.1:{proxy.sockets[0].getsockname()[1]}/0")
    async with proxy:
        await _submit(store, rollouts, SIZES[0])
        await _claim(connection, rollouts)
        recorder.commands.clear()
        await _turns(connection, rollouts, SIZES[0])
        # Scripts are known by then; commands of the connection itself are none of a turn.
        found = [command for command in recorder.commands if b"EVALSHA" in command[:40].upper()]
        await connection.close()
    await store.close()
    return found


async def _claimed(port: int, rollouts: int) -> None:
    store, connection = Store.open(f"redis://127.0.0.1:{port}/0"), Connection(f"redis://127.0.0.1:{port}/0")
    await connection.redis.flushdb()
    await _submit(store, rollouts, SIZES[0])
    await _claim(connection, rollouts)
    await connection.close()
    await store.close()


def _replay(port: int, commands: list[bytes]) -> float:
    """Sends commands as fast as Redis takes them; returns the seconds until the last answer."""
    with redis.Redis(port=port) as control, socket.create_connection(("127.0.0.1", port)) as line:
        begun = time.perf_counter()
        sending = threading.Thread(
            target=line.sendall, args=(b"".join(commands) + b"*2\r\n$4\r\nECHO\r\n$4\r\ndone\r\n",)
        )
        sending.start()
        last = b""
        while not last.endswith(b"$4\r\ndone\r\n"):
            last = last[-16:] + line.recv(PIECE)
            assert b"-ERR" not in last, last[:200]
        took = time.perf_counter() - begun
        sending.join()
        control.ping()
    return took


def turns(folder: Path | None, rollouts: int, rounds: int) -> list[Row]:
    """Returns a row per policy of the append-only file: turns a second."""
    rows: list[Row] = []
    for policy in ("always", "everysec"):
        with tempfile.TemporaryDirectory(dir=folder) as where, server(policy, Path(where)) as port:
            commands = uvloop.run(_recorded(port, rollouts))
            took = []
            for _ in range(rounds):
                uvloop.run(_claimed(port, rollouts))
                took.append(_replay(port, commands))
        rows.append(
            {
                "appendfsync": policy,
                "turns/s": rollouts * TURNS / min(took),
                "commands a turn": len(commands) / rollouts / TURNS,
                "bytes a turn": sum(map(len, commands)) / rollouts / TURNS,
            }
        )
    return rows


def _all(folder: Path | None, quick: bool) -> Iterator[tuple[str, list[Row], str]]:
    rollouts = 1000 if quick else 5000
    yield "sizes", states(folder, rollouts), f"Bytes of Redis for each of {rollouts:,} rollouts, by state."
    yield "sizes_workers", crowds(folder), "Workers that are announced by script and beat."
    yield "sizes_turns", turns(folder, rollouts, 3 if quick else 7), "What a store sends for turns, sent again at once."


def main() -> None:
    """Prints three tables."""
    options = parser("sizes", __doc__)
    options.add_argument("--folder", type=Path)
    chosen = options.parse_args()
    for name, rows, measures in _all(chosen.folder, chosen.quick):
        emit(
            name, rows, chosen, title=measures, measures=measures, leaves_out="Workers, API, and the broker's commands."
        )


if __name__ == "__main__":
    main()
