"""What each adapter has around its loop: it takes commands by lines of JSON and answers them, in the peer's own Python.

Only the standard library is imported here, because each adapter runs in an environment that has the peer and nothing of
this project. The parent counts CPU time between `run` and its answer, so everything else happens before or after:

1. The adapter starts, and answers `{"ready": ..., "versions": ..., "servers": [pids]}`.
2. `{"do": "prepare", "load": {...}}`: it makes what it needs of the rollouts; answers `{}`.
3. `{"do": "run"}`: it runs them all, as many at once as `in_flight` says; answers `{"seconds": ...}`.
4. `{"do": "samples"}`: it answers `{"samples": [...], "finished": n}`: ids and masks of the first rollouts.
"""

import asyncio
import json
import os
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Protocol

SHOWN = 8
"""So many rollouts are compared with what is expected: one of each conversation."""

Sampled = tuple[list[int], list[int]]
"""Ids and mask of one rollout."""


class Peer(Protocol):
    """One way to run rollouts."""

    packages: tuple[str, ...]
    """The packages whose versions are published."""

    async def start(self, options: dict[str, Any]) -> list[int]:
        """Starts what it needs; returns the pids of servers of its own whose CPU time counts."""

    def prepare(self, load: dict[str, Any]) -> None:
        """Takes the rollouts of the next run: `in_flight`, `tools`, `turns` and `rollouts` of `id` and `messages`."""

    async def run(self) -> None:
        """Runs them."""

    def finished(self) -> int:
        """Returns how many of them ended with the policy's answer in words."""

    def samples(self, count: int) -> list[Sampled | None]:
        """Returns ids and mask of the first ones; None where the peer gives back none."""

    async def stop(self) -> None:
        """Stops what `start` started."""


def add(arguments: str | dict[str, Any]) -> str:
    """Runs the calculator, the one tool of all conversations, on a call's arguments."""
    given = json.loads(arguments) if isinstance(arguments, str) else arguments
    return str(given["a"] + given["b"])


def serve(peer: Peer) -> None:
    """Serves commands until standard input ends. Options are the first line; what the peer prints goes to the log."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    asyncio.run(_serve(peer, answers))


async def _serve(peer: Peer, answers: Any) -> None:
    def tell(answer: dict[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    options = json.loads(sys.stdin.readline())
    try:
        servers = await peer.start(options)
        tell({"ready": True, "versions": _versions(peer.packages), "servers": servers})
        # A thread waits for the next line, so that the loop can serve open connections meanwhile.
        while line := await asyncio.to_thread(sys.stdin.readline):
            command = json.loads(line)
            if command["do"] == "prepare":
                peer.prepare(command["load"])
                tell({})
            elif command["do"] == "run":
                start = time.perf_counter()
                await peer.run()
                tell({"seconds": time.perf_counter() - start})
            else:
                tell({"samples": peer.samples(SHOWN), "finished": peer.finished()})
    finally:
        await peer.stop()


def _versions(packages: tuple[str, ...]) -> dict[str, str]:
    found = {"python": sys.version.split()[0]}
    for name in packages:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
