"""What code one steady turn of a plain rollout walks through in its worker: modules of ours, functions, calls.

    python -m benchmarks.steady_turn [--quick] [TOKENIZER]

One rollout at a time runs in this process, with a real Redis and the stub trainer over sockets, as in a worker.
`sys.setprofile` counts what is called between the beginnings of two turns in its middle. A coroutine that goes on is
counted again, in each frame that waits for it. Counts don't depend on what else the machine does; the smallest of some
turns has no beat and no comparison with the rule in it.
"""

import asyncio
import sys
import tempfile
import uuid
from collections import Counter
from collections.abc import Awaitable
from pathlib import Path
from types import FrameType
from typing import Any

import orjson
from benchmarks.conversations import messages, rollout_id, tool_names
from benchmarks.fsync import server
from benchmarks.load import Load, TrainerManner
from benchmarks.processes import serving
from benchmarks.report import Row, emit, parser

from rolloutpool_common.rendering import TINY
from rolloutpool_common.store import NewBatch, NewRollout
from rolloutpool_worker.conversation.branch import Branch
from rolloutpool_worker.rollout.services import Services
from rolloutpool_worker.rollout.ticket import run_rollout
from rolloutpool_worker.settings import WorkerSettings

TURNS = 24
FIRST, LAST = 9, 15
"""Turns between whose beginnings is counted: the histories are long enough for echoes without their known part."""


class _Counted:
    """Counts calls from one turn to the next."""

    def __init__(self) -> None:
        self.turns: list[tuple[Counter[tuple[str, str]], int]] = []
        """Of each counted turn: calls of Python's functions by file and name, and calls of functions in C."""
        self._python: Counter[tuple[str, str]] = Counter()
        self._c = 0

    def begins(self, turn: int) -> None:
        """Is called when a turn begins."""
        sys.setprofile(None)
        if FIRST < turn <= LAST:
            self.turns.append((self._python, self._c))
        self._python, self._c = Counter(), 0
        if FIRST <= turn < LAST:
            sys.setprofile(self._note)

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            self._python[frame.f_code.co_filename, frame.f_code.co_qualname] += 1
        elif event == "c_call":
            self._c += 1


async def submit(services: Services, load: Load, trainer: str, tokenizer: str, serial: int) -> str:
    """Submits one of a load's rollouts; returns its uid."""
    shared = {
        "server_url": trainer,
        "tokenizer_name": tokenizer,
        "sampling_params": {},
        "max_turns": load.turns,
        "max_tokens_total": 1_000_000,
        "tools": tool_names(load),
        "v1": load.trainer is not TrainerManner.DECLARES,
    }
    name = rollout_id(load, serial)
    own = orjson.dumps({"messages": messages(load, serial), "rollout_id": name})
    item = NewRollout(rollout_id=name, overrides=own, deadline_s=600.0)
    batch = "b" + uuid.uuid4().hex
    await services.store.batches.submit(
        NewBatch(batch_id=batch, owner="guest", shared=orjson.dumps(shared), rollouts=[item])
    )
    return f"{batch}-0"


async def _run(services: Services, load: Load, trainer: str, tokenizer: str, serial: int) -> _Counted:
    uid = await submit(services, load, trainer, tokenizer, serial)
    counted, real = _Counted(), Branch.sample

    def sample(branch: Branch, **options: Any) -> Awaitable[Any]:
        counted.begins(branch.turns + 1)
        return real(branch, **options)

    Branch.sample = sample  # type: ignore[assignment,method-assign]
    try:
        end = await run_rollout(services, uid)
    finally:
        sys.setprofile(None)
        Branch.sample = real  # type: ignore[method-assign]
    if end.outcome.value != "completed":
        raise AssertionError(f"not a clean rollout: {end}")
    return counted


def _row(manner: TrainerManner, turns: list[tuple[Counter[tuple[str, str]], int]]) -> Row:
    python, c = min(turns, key=lambda turn: turn[0].total())
    ours = {place: n for place, n in python.items() if "rolloutpool_" in place[0]}
    return {
        "trainer": manner.value,
        "modules of ours": len({file for file, _ in ours}),
        "functions of ours": len(ours),
        "calls of ours": sum(ours.values()),
        "calls of Python": python.total(),
        "calls of C": c,
    }


async def measure(tokenizer: str, rollouts: int) -> list[Row]:
    """Returns a row for each manner of trainers."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder, server("always", Path(folder)) as redis_port:
        services = Services(WorkerSettings.model_validate({"redis_url": f"redis://127.0.0.1:{redis_port}/0"}))
        with serving("benchmarks.stub_trainer", "--tokenizer", tokenizer) as port:
            for manner in (TrainerManner.DECLARES, TrainerManner.SILENT):
                load = Load(turns=TURNS, in_flight=1, latency_ms=0, rollouts=1, trainer=manner)
                counted = [
                    await _run(services, load, f"http://127.0.0.1:{port}", tokenizer, serial)
                    for serial in range(rollouts)
                ]
                rows.append(_row(manner, [turn for one in counted for turn in one.turns]))
        await services.close()
    return rows


def main() -> None:
    """Counts for each manner of trainers, and prints a table."""
    options = parser("steady_turn", __doc__)
    options.add_argument("tokenizer", nargs="?", default=TINY, help="a name or a directory; default: tiny")
    chosen = options.parse_args()
    emit(
        "steady_turn",
        asyncio.run(measure(chosen.tokenizer, 3 if chosen.quick else 12)),
        chosen,
        title="What one steady turn walks through in its worker",
        measures="Calls from the beginning of a turn to that of the next: the fewest of some turns.",
        leaves_out="Claim, first turn and end; and a hundred rollouts in flight share one write to Redis.",
    )


if __name__ == "__main__":
    main()
