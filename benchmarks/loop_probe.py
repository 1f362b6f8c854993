"""A worker's plug-in: a tool with results of any length, and a record of how late the worker's loop is.

The record begins with the tool's first call: every 5 ms a timer notes when it fired and how late, in seconds on
CLOCK_MONOTONIC, which all processes of a machine share. It goes to the file that the environment names, as pairs of
doubles.
"""

import asyncio
import os
import random
import time
from array import array
from pathlib import Path
from typing import Final

from rolloutpool_worker.tools.base import ToolContext, tool

__all__ = ["FILE_VARIABLE", "TOOL", "text"]

FILE_VARIABLE: Final = "BENCHMARK_LOOP_FILE"
TOOL: Final = "read_log"
_TICK_SECONDS = 0.005
_NOTE_EVERY = 40
_probes: set[asyncio.Task[None]] = set()


def text(characters: int, seed: int) -> str:
    """Returns lines as in a log; the same seed gives the same lines."""
    rng = random.Random(seed)
    line = "{:05d} worker {} took {} ms for request {:x}\n"
    rows = characters // 45 + 1
    return "".join(
        line.format(number, rng.randrange(64), rng.randrange(9999), rng.getrandbits(48)) for number in range(rows)
    )[:characters]


@tool(
    TOOL,
    "Read a log",
    {"type": "object", "properties": {"characters": {"type": "integer"}}, "required": ["characters"]},
)
async def read_log(context: ToolContext, characters: int) -> object:
    """Reads so many characters of a log."""
    if not _probes:
        _probes.add(asyncio.create_task(_probe(Path(os.environ[FILE_VARIABLE]))))
    return text(characters, context.turn)


async def _probe(file: Path) -> None:
    notes = array("d")
    while True:
        due = time.perf_counter() + _TICK_SECONDS
        await asyncio.sleep(_TICK_SECONDS)
        now = time.perf_counter()
        notes.extend((now, max(0.0, now - due)))
        if len(notes) >= 2 * _NOTE_EVERY:
            with file.open("ab") as out:
                notes.tofile(out)
            del notes[:]
