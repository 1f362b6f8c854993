"""Runs a program as it stands, on a pool that is there in the place of the one that it would start.

    python -m tests.support.example_program http://127.0.0.1:9000 examples/calculator.py

A pool is five processes, and the programs of a test module can do with one. It has to have what the program asks its
own pool for: the door is there, and a program that is a plug-in is loaded by the workers.
"""

import runpy
import sys
from pathlib import Path
from typing import Any

import httpx

from rolloutpool_trainer import LocalPool


def main(url: str, program: str) -> None:
    """Runs it."""
    path = Path(program)

    def start(pool: LocalPool) -> LocalPool:
        plugin = {"ROLLOUTPOOL_PLUGINS": path.stem, "PYTHONPATH": str(path.parent)}
        assert pool._env in ({}, plugin), "the pool that is there has no other settings"
        assert not pool._flower, "it has no Flower"
        pool._port = httpx.URL(url).port or 0
        return pool

    def stop(_: LocalPool) -> None:
        """It goes on for the next program."""

    started: Any = LocalPool
    started.start, started.stop = start, stop
    sys.argv = [program]
    sys.path[0] = str(path.parent)
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:])
