"""A worker's plug-in: a tool with results of any length, and records of how late the worker's loop is, and why.

Both records (`loop_ticks`, `loop_steps`) begin with the tool's first call, and go to the files that the environment
names.
"""

import asyncio
import os
import random
from functools import cache
from pathlib import Path
from typing import Final

from benchmarks.loop_steps import note_steps
from benchmarks.loop_ticks import note_delays

from rolloutpool_worker.tools.base import ToolContext, tool

FILE_VARIABLE: Final = "BENCHMARK_LOOP_FILE"
STEPS_VARIABLE: Final = "BENCHMARK_STEPS_FILE"
"""Where it is not set, no steps are noted."""
TOOL: Final = "read_log"
_probes: set[asyncio.Task[None]] = set()


@cache
def text(characters: int, seed: int) -> str:
    """Returns lines as in a log; the same seed gives the same lines, without the time that it takes to write them."""
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
        _probes.add(asyncio.create_task(note_delays(Path(os.environ[FILE_VARIABLE]))))
        if STEPS_VARIABLE in os.environ:
            note_steps(asyncio.get_running_loop(), Path(os.environ[STEPS_VARIABLE]))
    return text(characters, context.turn)
