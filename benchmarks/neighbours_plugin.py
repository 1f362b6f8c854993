"""Plug-ins of the benchmark of neighbours: isolated tools that do what no tool should do.

The child processes import this module, so it imports nothing else.
"""

from rolloutpool_worker.tools import Isolated, ToolContext, tool

TAKE, SPIN = "take_memory", "spin"
_NOTHING = {"type": "object", "properties": {}}
_LIMITS = Isolated(memory_mb=256, seconds=1)


@tool(TAKE, "Takes 2 GB", _NOTHING, isolated=_LIMITS)
async def take_memory(_: ToolContext) -> object:
    """Takes 2 GB of memory."""
    return len(bytearray(2 * 2**30))


@tool(SPIN, "Never ends", _NOTHING, isolated=_LIMITS)
async def spin(_: ToolContext) -> object:
    """Computes for ever."""
    while True:
        pass
