"""What a call of a program costs at a door, beside a turn of a plain rollout, and how much later it is answered.

    python -m benchmarks.door [--quick] [--rate 50]

Programs send histories that grow, as agents do, whose first message has so many kB. A raw client makes the calls at a
fixed rate, first to the trainer itself and then to a door, and so on in turns; plain rollouts of as many turns are run
between. CPU is from /proc (`cpu.py`): of door, worker, API and Redis together.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import Any

import orjson
from benchmarks.cpu import Usage
from benchmarks.local_pool import local_pool
from benchmarks.processes import ROOT, serving
from benchmarks.report import Row, emit, parser

from rolloutpool_common.rendering import TINY
from rolloutpool_trainer import Batch, RolloutClient

KILOBYTES = (1, 10, 40, 79)
SESSIONS = 16
TURNS = 16
ROLES = ("door", "worker", "redis", "api")
"""Those of a call first. The API only hands out keys and results."""
MODEL_MS = 50
TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds two numbers.",
        "parameters": {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}},
    },
}
WORDS = "You help people with their code, and you say what you do. "


@dataclass
class Calls:
    """What one run of the client has measured."""

    seconds: list[float] = field(default_factory=list)
    """Of each call."""
    bytes: int = 0


async def _session(host: str, port: int, path: str, key: str, kilobytes: int, ready: "Pace", into: Calls) -> None:
    """Plays one program: a call, the result of its tool, the next call."""
    reader, writer = await asyncio.open_connection(host, port, limit=2**24)
    system = (WORDS * (kilobytes * 1000 // len(WORDS) + 1))[: kilobytes * 1000]
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": system},
        {"role": "user", "content": "Add numbers."},
    ]
    for _ in range(TURNS):
        body = orjson.dumps({"model": "policy", "messages": messages, "tools": [TOOL]})
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\ncontent-length: {len(body)}\r\n\r\n"
        await ready.wait()
        start = time.perf_counter()
        writer.write(head.encode() + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        assert b" 200 " in answer.split(b"\r\n")[0], answer
        lines = answer.lower().split(b"\r\n")
        length = next(int(line[15:]) for line in lines if line.startswith(b"content-length:"))
        message = orjson.loads(await reader.readexactly(length))["choices"][0]["message"]
        into.seconds.append(time.perf_counter() - start)
        into.bytes += len(body)
        call = message["tool_calls"][0]
        messages += [
            {"role": "assistant", "content": message["content"], "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call["id"], "content": "38"},
        ]
    writer.close()


class Pace:
    """Lets so many calls a second go."""

    def __init__(self, rate: float) -> None:
        self._every = 1 / rate
        self._next = time.perf_counter()

    async def wait(self) -> None:
        """Waits for the next one's turn."""
        now = time.perf_counter()
        self._next = max(self._next + self._every, now - 1.0)
        await asyncio.sleep(max(0.0, self._next - now))


async def _play(addresses: Sequence[tuple[str, int, str, str]], kilobytes: int, rate: float) -> Calls:
    calls, pace = Calls(), Pace(rate)
    await asyncio.gather(*[_session(*address, kilobytes, pace, calls) for address in addresses])
    return calls


class Pair:
    """Calls to a trainer and to a door, and plain rollouts of the same pool beside them."""

    def __init__(
        self, client: RolloutClient, door: str, trainer: int, kilobytes: int, rate: float, tokenizer: str
    ) -> None:
        self._client, self._door = client, door.removeprefix("http://")
        self._trainer, self._kilobytes, self._rate = trainer, kilobytes, rate
        self._defaults = {
            "tokenizer_name": tokenizer,
            "allow_unverified": True,
            "idempotent": True,
            "max_tokens_total": 1_000_000,
            "max_turns": TURNS,
        }

    def direct(self, path: str = "") -> Calls:
        """Makes the calls to the trainer itself."""
        address = ("127.0.0.1", self._trainer, f"{path}/v1/chat/completions", "k")
        return asyncio.run(_play([address] * SESSIONS, self._kilobytes, self._rate))

    def plain(self) -> float:
        """Runs plain rollouts; returns the CPU of a turn in ms, from submit to result.

        Their turns come at the same rate as the calls, and one by one like them: what comes in a crowd costs less,
        because it is written together.
        """
        before = Usage()
        turns = sum(
            result.num_llm_calls for result in self._submit(f"/every/{int(1000 / self._rate)}", ["add"]).results()
        )
        return sum(_spent(before, turns).values())

    def through(self, path: str = "") -> tuple[Calls, dict[str, float]]:
        """Makes the calls to a door; returns also the CPU of each role in ms, from submit to result."""
        before = Usage()
        batch = self._submit(path, None)
        host, _, port = self._door.partition(":")
        keys = [batch.session(index) for index in range(SESSIONS)]
        addresses = [(host, int(port), f"/s/{one.uid}/v1/chat/completions", one.key) for one in keys]
        calls = asyncio.run(_play(addresses, self._kilobytes, self._rate))
        for index in range(SESSIONS):
            batch.end_session(index)
        assert all(len(result.samples) == 1 for result in batch.results())
        return calls, _spent(before, len(calls.seconds))

    def _submit(self, path: str, tools: list[str] | None) -> Batch:
        options = {"harness": {"external": True}} if tools is None else {"tools": tools}
        rollouts = [{"messages": [{"role": "user", "content": "Add numbers."}]}] * SESSIONS
        trainer = f"http://127.0.0.1:{self._trainer}{path}"
        return self._client.submit(rollouts, defaults={**self._defaults, **options}, trainer=[trainer])


def measure(pair: Pair, kilobytes: int, repeats: int) -> Row:
    """Measures one size; medians over the repeats."""
    plain_ms, roles, direct_s, through_s = [], [], [], []
    for _ in range(repeats):
        direct_s += pair.direct().seconds
        plain_ms.append(pair.plain())
        calls, own = pair.through()
        roles.append(own)
        through_s += calls.seconds
    size = calls.bytes / len(calls.seconds) / 1000
    plain_turn = median(plain_ms)
    late = f"/after/{MODEL_MS}"
    return {
        "kB, first message": kilobytes,
        "kB, mean": size,
        "calls": len(through_s),
        "plain turn, ms": plain_turn,
        "call, ms": median(sum(own[role] for role in ROLES[:3]) for own in roles),
        **{f"{role}, ms": median(own[role] for own in roles) for role in ROLES},
        "allowed, ms": 1.5 * plain_turn + 0.01 * size,
        "p50, ms": median(through_s) * 1000,
        "p50 without, ms": median(direct_s) * 1000,
        "p99, ms": quantiles(through_s, n=100)[-1] * 1000,
        "p99 without, ms": quantiles(direct_s, n=100)[-1] * 1000,
        f"p99, model of {MODEL_MS} ms": quantiles(pair.through(late)[0].seconds, n=100)[-1] * 1000,
        f"without, model of {MODEL_MS} ms": quantiles(pair.direct(late).seconds, n=100)[-1] * 1000,
    }


def _spent(before: Usage, calls: int) -> dict[str, float]:
    """Returns CPU in ms for each call, by role."""
    spent = Usage().since(before)
    return {role: spent.get(role, 0.0) * 1000 / calls for role in ROLES}


def main() -> None:
    """Measures all sizes and prints a table."""
    options = parser("door", __doc__)
    options.add_argument("--rate", type=float, default=50.0)
    chosen = options.parse_args()
    real = ROOT / "build" / "tokenizers" / "qwen3"
    tokenizer = str(real) if real.is_dir() else TINY
    with (
        serving("benchmarks.program_trainer", tokenizer) as trainer,
        local_pool(workers=2, door=True, tokenizer=tokenizer) as pool,
        pool.client() as client,
    ):
        rows = [
            measure(
                Pair(client, pool.door_url or "", trainer, kilobytes, chosen.rate, tokenizer),
                kilobytes,
                1 if chosen.quick else 3,
            )
            for kilobytes in (KILOBYTES[:2] if chosen.quick else KILOBYTES)
        ]
    emit(
        "door",
        rows,
        chosen,
        title="Calls of programs at a door",
        measures=(
            f"{SESSIONS} programs of {TURNS} calls each, at a fixed rate, whose histories grow. CPU of door, workers "
            "and Redis for each call, from submit to result; beside it that of a turn of plain rollouts in the same "
            "pool, with the API's. Times are the client's, with a trainer that answers at once, and with one that "
            "takes a while as models do; `without` are the same calls to the trainer itself."
        ),
        leaves_out="A model, tools, networks, streams.",
    )


if __name__ == "__main__":
    main()
