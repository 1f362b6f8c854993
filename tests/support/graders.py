"""Graders for workers under test, as a user would write them; ROLLOUTPOOL_PLUGINS names this module.

Whoever is asked writes a line into the file that GRADER_LOG names: `NAME UID UID …`, with the rollouts that it saw.
"""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.support.finished_rollouts import sample

from rolloutpool_common.errors import RequestFault
from rolloutpool_common.outcomes import FinishReason, RolloutStatus
from rolloutpool_common.protocol.result import RolloutResult
from rolloutpool_worker.graders import Grade, grader
from rolloutpool_worker.tools import Isolated


def note(name: str, *rollouts: RolloutResult) -> None:
    """Says that a grader was asked."""
    with Path(os.environ["GRADER_LOG"]).open("a") as log:
        log.write(" ".join((name, *(rollout.uid for rollout in rollouts))) + "\n")


def asked(log: Path, name: str | None = None) -> list[str]:
    """The lines of the log, or those of one grader."""
    return [line for line in log.read_text().splitlines() if name is None or line.split()[0] == name]


def rollout_of(*responses: str) -> RolloutResult:
    """A completed rollout with a sample for each of these texts, a token per byte."""
    return RolloutResult(
        uid="b-0",
        rollout_id="r",
        batch_id="b",
        index=0,
        status=RolloutStatus.COMPLETED,
        finish_reason=FinishReason.STOP,
        samples=[sample("ask", ("sampled", text, 1)) for text in responses],
    )


def per_token(rollout: RolloutResult) -> list[list[float]]:
    """The place of each token."""
    return [[float(place) for place, _ in enumerate(sample.response_ids)] for sample in rollout.samples]


ANSWERS: dict[str, Callable[[RolloutResult], object]] = {
    "a number": lambda _: 0.5,
    "a whole number": lambda _: 2,
    "true": lambda _: True,
    "a grade": lambda _: Grade(0.25, {"style": 0.75, "length": -0.5}),
    "rewards per token": lambda rollout: Grade(1.0, token_rewards=per_token(rollout)),
}
INVALID: dict[str, Callable[[RolloutResult], object]] = {
    "nothing": lambda _: None,
    "nan": lambda _: float("nan"),
    "infinity": lambda _: Grade(float("-inf")),
    "a text": lambda _: "1.0",
    "10 MB": lambda _: "x" * 10_000_000,
    "a list": lambda _: [1.0] * 1_000_000,
    "a number of 10,000 digits": lambda _: 10**10_000,
    "a part that is a text": lambda _: Grade(1.0, {"style": "good"}),  # type: ignore[dict-item]
    "a part that is nan": lambda _: Grade(1.0, {"style": float("nan")}),
    "parts that are a list": lambda _: Grade(1.0, [1.0]),  # type: ignore[arg-type]
    "10,000 parts": lambda _: Grade(1.0, {str(n): 1.0 for n in range(10_000)}),
    "a sample too few": lambda _: Grade(1.0, token_rewards=[]),
    "a token too many": lambda rollout: Grade(1.0, token_rewards=[[*row, 0.0] for row in per_token(rollout)]),
    "a million tokens": lambda _: Grade(1.0, token_rewards=[[0.0] * 1_000_000]),
    "a token's reward that is nan": lambda rollout: Grade(
        1.0, token_rewards=[[float("nan")] * len(row) for row in per_token(rollout)]
    ),
    "a reward for the whole sample": lambda _: Grade(1.0, token_rewards=[1.0]),  # type: ignore[list-item]
}


@grader("returns")
async def returns(rollout: RolloutResult, options: Any) -> object:
    """Returns what the options name."""
    note("returns", rollout)
    return {**ANSWERS, **INVALID}[options](rollout)


@grader("isolated_returns")
def isolated_returns(rollout: RolloutResult, options: Any) -> object:
    """The same, in a child process."""
    note("isolated_returns", rollout)
    return {**ANSWERS, **INVALID}[options](rollout)


@grader("fails")
async def fails(rollout: RolloutResult, options: Any) -> object:
    """Raises as often as the options say, and then returns 0.5."""
    note("fails", rollout)
    if len([line for line in asked(Path(os.environ["GRADER_LOG"]), "fails") if rollout.uid in line]) <= options:
        _fail()
    return 0.5


@grader("fails_in_child")
def fails_in_child(rollout: RolloutResult, options: Any) -> object:
    """Raises."""
    return _fail()


def _fail() -> object:
    raise RuntimeError("secret detail")


@grader("refuses")
async def refuses(rollout: RolloutResult, options: Any) -> object:
    """Takes no options."""
    raise RequestFault("options must name an answer")


@grader("hangs")
async def hangs(rollout: RolloutResult, options: Any) -> object:
    """Waits for the file that the options name; the second time it need not wait."""
    note("hangs", rollout)
    while not options or not await asyncio.to_thread(Path(options).exists):  # noqa: ASYNC110  of another process
        await asyncio.sleep(0.01)
    return 0.5


@grader("disobeys")
async def disobeys(rollout: RolloutResult, options: Any) -> object:
    """Hangs, and swallows the first cancellations."""
    note("disobeys", rollout)
    for _ in range(10):
        try:
            await asyncio.sleep(0.2)
        except asyncio.CancelledError:
            continue
    return 0.5


@grader("blocks")
async def blocks(rollout: RolloutResult, options: Any) -> object:
    """Holds its event loop for as many seconds as the options say."""
    note("blocks", rollout)
    if options["how"] == "sleeps":
        time.sleep(options["seconds"])  # noqa: ASYNC251  it is what a grader should not do
    until = time.perf_counter() + options["seconds"]
    while options["how"] == "computes" and time.perf_counter() < until:
        pass
    return 0.5


@grader("exits")
async def exits(rollout: RolloutResult, options: Any) -> object:
    """Ends what would end the event loop."""
    raise {"system": SystemExit, "keyboard": KeyboardInterrupt, "cancelled": asyncio.CancelledError}[options]


@grader("spins", isolated=Isolated(memory_mb=256))
def spins(rollout: RolloutResult, options: Any) -> object:
    """Computes for as many seconds as the options say."""
    until = time.perf_counter() + options
    while time.perf_counter() < until:
        pass
    return 0.5


@grader("dies", isolated=Isolated(memory_mb=256))
def dies(rollout: RolloutResult, options: Any) -> object:
    """Ends its process."""
    note("dies", rollout)
    os.kill(os.getpid(), signal.SIGSEGV)
    return 0.0


@grader("kills")
async def kills(rollout: RolloutResult, options: Any) -> object:
    """Ends its worker."""
    note("kills", rollout)
    os.kill(os.getpid(), signal.SIGKILL)
    return 0.0


@grader("ranks", of_groups=True)
async def ranks(rollouts: Sequence[RolloutResult], options: Any) -> object:
    """Gives each its place among those that it sees; fails as often as the options say."""
    note("ranks", *rollouts)
    if len(asked(Path(os.environ["GRADER_LOG"]), "ranks")) <= (options or 0):
        raise RuntimeError
    return [Grade(float(place), {"members": len(rollouts)}) for place, _ in enumerate(rollouts)]


@grader("too_few", of_groups=True)
async def too_few(rollouts: Sequence[RolloutResult], options: Any) -> object:
    """Forgets one."""
    return [1.0 for _ in rollouts[1:]]
