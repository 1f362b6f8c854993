"""A worker's plug-in: the tool of `lookup`."""

from benchmarks.lookup import LOOK_UP

from rolloutpool_worker.tools import TOOLS

TOOLS.register(LOOK_UP.name, LOOK_UP)
