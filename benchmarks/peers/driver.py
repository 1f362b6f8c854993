"""Runs a peer's adapter in the peer's own environment, and counts what a run of rollouts costs there.

CPU time is that of the adapter's process, and of the servers that it says are its own, from /proc. It is read before
the adapter is told to run, and after it says that it is done.
"""

import json
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from os import environ, getpid
from pathlib import Path
from select import select
from typing import Any

from benchmarks.conversations import VARIANTS, conversation, messages, rollout_id
from benchmarks.cpu import seconds_of
from benchmarks.load import Load
from benchmarks.peers.catalogue import Peer
from benchmarks.peers.environment import Environment
from benchmarks.peers.openai_form import Form, Sample, base_url, expected
from benchmarks.processes import ENVIRONMENT, ROOT

from rolloutpool_common.process import launch
from rolloutpool_worker.tools import calculator

ADAPTERS = ROOT / "benchmarks" / "peers" / "adapters"
STOPS_WITHIN_SECONDS = 30.0
ANSWERS_WITHIN_SECONDS = 1800.0
"""For the longest run of the slowest peer on a busy machine. One that hangs must not hang the comparison."""


class PeerFailed(Exception):
    """An adapter ended, or did not finish its rollouts. The message says where its log is."""


@dataclass(frozen=True)
class Run:
    """What one system took for one load."""

    rollouts: int
    seconds: float
    """Wall time from the first request to the last result."""
    cpu_ms: float
    """CPU milliseconds per rollout of everything but the scripted model."""
    client_ms: float | None = None
    """The part of a client in a process of its own; None where the system runs in its caller's process."""
    right: int | None = None
    """How many of `VARIANTS` rollouts came back with the right ids and mask; None where none come back."""

    @property
    def per_second(self) -> float:
        """Rollouts per second."""
        return self.rollouts / self.seconds


class PeerUnderLoad:
    """A running adapter."""

    def __init__(self, process: "subprocess.Popen[str]", log: Path, tokenizer: str) -> None:
        self.log = log.relative_to(ROOT) if log.is_relative_to(ROOT) else log
        """What the peer prints."""
        self.versions: dict[str, str] = {}
        """Of the peer's Python and packages."""
        self._process = process
        self._tokenizer = tokenizer
        self._servers: list[int] = []
        self._serial = 0

    def start(self, options: Mapping[str, object]) -> None:
        """Sends the first line and waits until the adapter is ready. Raises PeerFailed."""
        ready = self._ask(options)
        self.versions, self._servers = ready["versions"], ready["servers"]

    def measure(self, load: Load) -> Run:
        """Measures one load. Raises PeerFailed if a rollout does not end as it should."""
        self._ask({"do": "prepare", "load": self._rollouts(load)})
        before, client_before = self._cpu()
        seconds = self._ask({"do": "run"})["seconds"]
        after, client_after = self._cpu()
        told = self._ask({"do": "samples"})
        if told["finished"] != load.rollouts:
            raise PeerFailed(f"{told['finished']} of {load.rollouts} rollouts ended with an answer, see {self.log}")
        client_ms = (client_after - client_before) * 1000 / load.rollouts
        return Run(
            rollouts=load.rollouts,
            seconds=seconds,
            cpu_ms=(after - before) * 1000 / load.rollouts,
            client_ms=client_ms if self._servers else None,
            right=right_samples(told["samples"], load, self._tokenizer),
        )

    def _rollouts(self, load: Load) -> dict[str, Any]:
        serials = range(self._serial, self._serial + load.rollouts)
        self._serial += load.rollouts + (-load.rollouts) % VARIANTS
        calculators = (calculator.ADD, calculator.SUBTRACT, calculator.MULTIPLY, calculator.DIVIDE)
        return {
            "turns": load.turns,
            "in_flight": load.in_flight,
            "tools": [tool.definition.model_dump() for tool in calculators],
            "rollouts": [{"id": rollout_id(load, serial), "messages": messages(load, serial)} for serial in serials],
        }

    def _cpu(self) -> tuple[float, float]:
        try:
            client = seconds_of(self._process.pid)
            return client + sum(map(seconds_of, self._servers)), client
        except ProcessLookupError:
            raise PeerFailed(f"one of its processes ended, see {self.log}") from None

    def _ask(self, command: Mapping[str, object]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
            # Each command has one line of answer, so nothing waits in the buffer that `select` cannot see.
            if not select([self._process.stdout], [], [], ANSWERS_WITHIN_SECONDS)[0]:
                raise PeerFailed(f"it said nothing for {ANSWERS_WITHIN_SECONDS:.0f} s, see {self.log}")
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise PeerFailed(f"it ended with exit code {self._process.wait()}, see {self.log}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def right_samples(samples: list[list[list[int]] | None], load: Load, tokenizer: str) -> int | None:
    """Counts the samples that have exactly the ids and the mask that they should; None if there is not one sample."""
    if not any(samples):
        return None
    right = 0
    for variant, sample in enumerate(samples):
        want = expected(conversation(load.turns, variant, load.result_characters, tokenizer, load.trainer))
        right += sample is not None and Sample(tuple(sample[0]), tuple(sample[1])) == want
    return right


@contextmanager
def running_peer(peer: Peer, environment: Environment, *, port: int, tokenizer: str) -> Iterator[PeerUnderLoad]:
    """Runs an adapter while the block runs; `port` is the scripted model's. Raises PeerFailed if it does not start."""
    log = environment.folder.with_name(f"{peer.slug}.log")
    launcher = [environment.python, "-I", "-S", launch.__file__, str(getpid()), "0"]
    with log.open("w", encoding="utf-8") as output:
        process = subprocess.Popen(
            [*launcher, environment.python, "-m", f"benchmarks.peers.adapters.{peer.adapter}"],
            cwd=environment.folder,
            env={**_inherited(), **ENVIRONMENT, "PYTHONPATH": f"{ROOT}:{ADAPTERS}", "NO_PROXY": "127.0.0.1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
            text=True,
        )
        try:
            under_load = PeerUnderLoad(process, log, tokenizer)
            under_load.start(
                {
                    "url": base_url(port, peer.form),
                    "tokenizer": tokenizer,
                    "launch": launch.__file__,
                    "with_ids": peer.form is not Form.PLAIN,
                }
            )
            yield under_load
        finally:
            _stop(process)


def _inherited() -> dict[str, str]:
    # Virtual environments do not nest, and this project's settings are not the peer's.
    return {name: value for name, value in environ.items() if not name.startswith(("VIRTUAL_ENV", "PYTHON"))}


def _stop(process: "subprocess.Popen[str]") -> None:
    assert process.stdin is not None
    try:
        process.stdin.close()
        process.wait(STOPS_WITHIN_SECONDS)
    except (BrokenPipeError, subprocess.TimeoutExpired):
        process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()
