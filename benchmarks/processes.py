"""Child processes of a benchmark. Each prints the port that it listens on, and ends with the benchmark."""

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from os import environ, getpid
from pathlib import Path

from rolloutpool_common.process import launch

ROOT = Path(__file__).parents[1]
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
"""For every process that is measured: one thread where libraries would start several."""


@contextmanager
def serving(module: str, *arguments: str, env: Mapping[str, str] | None = None) -> Iterator[int]:
    """Runs `python -m module` while the block runs; yields its port when it listens."""
    launcher = [sys.executable, "-I", "-S", launch.__file__, str(getpid()), "0"]
    process = subprocess.Popen(
        [*launcher, sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        env={**environ, **ENVIRONMENT, **(env or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"{module} ended before it listened, with exit code {process.wait()}")
        yield int(line)
    finally:
        process.kill()
        process.communicate()
