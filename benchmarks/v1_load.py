"""Many `POST /rollout` at once, each on a connection of its own: to the founding pattern, and to the pool."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import orjson
import uvloop
from benchmarks.conversations import VARIANTS, messages, rollout_id
from benchmarks.cpu import Usage
from benchmarks.load import Load, Measured, System, TrainerManner
from benchmarks.processes import serving
from benchmarks.wire import connect, head


class V1UnderLoad:
    """A running server that speaks protocol v1."""

    def __init__(self, system: System, port: int, trainer: str, tokenizer: str) -> None:
        self._system = system
        self._port = port
        self._tokenizer = tokenizer
        self._trainer = trainer
        self._serial = 0

    def warm_up(self, load: Load) -> None:
        """Opens connections and fills caches, those of the trainer too."""
        self.measure(replace(load, turns=2, latency_ms=0, slow_ms=None, rollouts=2 * load.in_flight))
        self.measure(replace(load, latency_ms=0, slow_ms=None, rollouts=VARIANTS))

    def measure(self, load: Load) -> Measured:
        """Measures one load. Each slot runs a short rollout before the clock starts, so that all connections stand."""
        return uvloop.run(self._measure(load))

    async def _measure(self, load: Load) -> Measured:
        start_of_head = head(self._port, "/rollout")
        connections = [await connect(self._port) for _ in range(min(load.in_flight, load.rollouts))]

        async def slot(number: int, bodies: Iterator[bytes]) -> None:
            for body in bodies:
                # The pool closes a connection on which nothing comes for some seconds, as happens on a busy machine.
                if connections[number].is_closed:
                    connections[number] = await connect(self._port)
                answer = await connections[number].post(start_of_head, body)
                if b'"finish_reason":"stop"' not in answer:
                    raise AssertionError(f"not a clean rollout: {answer[:500]!r}")

        async def run(bodies: list[bytes]) -> None:
            waiting = iter(bodies)
            await asyncio.gather(*(slot(number, waiting) for number in range(len(connections))))

        bodies = [self._body(load, serial) for serial in range(self._serial, self._serial + load.rollouts)]
        # Each rollout of the pool needs a name of its own.
        self._serial += load.rollouts + (-load.rollouts) % VARIANTS
        short = replace(load, turns=2, latency_ms=0, slow_ms=None)
        await run([self._body(short, self._serial + serial) for serial in range(len(connections))])
        before, start = Usage(), time.perf_counter()
        await run(bodies)
        seconds = time.perf_counter() - start
        spent = Usage().since(before)
        for connection in connections:
            connection.close()
        return Measured(self._system, load, seconds, spent)

    def _body(self, load: Load, serial: int) -> bytes:
        # The pool remembers by URL how a trainer behaves. Here one server plays several, so each has a name of its own.
        rerenders = load.trainer is TrainerManner.RERENDERS
        trainer = self._trainer.replace("127.0.0.1", "localhost") if rerenders else self._trainer
        return orjson.dumps(
            {
                "rollout_id": rollout_id(load, serial),
                "server_url": trainer,
                "messages": messages(load, serial),
                "sampling_params": {},
                "tokenizer_name": self._tokenizer,
                "max_turns": load.turns,
                "max_tokens_total": 1_000_000,
            }
        )


@contextmanager
def running_founding(trainer: str, *, in_flight: int, tokenizer: str) -> Iterator[V1UnderLoad]:
    """Runs the server while the block runs."""
    with serving("benchmarks.founding", "--in-flight", str(in_flight), "--tokenizer", tokenizer) as port:
        yield V1UnderLoad(System.FOUNDING, port, trainer, tokenizer)
