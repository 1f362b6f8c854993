"""`rolloutpool demo` on an installed tree: seconds to its first result and to its end, and all CPU seconds.

    python -m benchmarks.demo [--quick] [--runs 3]

The command is started as a user starts it, and its output is read as it comes.
"""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.processes import ENVIRONMENT, ROOT
from benchmarks.report import Plot, Row, emit, parser

RUNS = 3
_FIRST = re.compile(r"first result ([0-9.]+) s")
_MISMATCHES = re.compile(r"\b0 mismatches")
_TICKS = os.sysconf("SC_CLK_TCK")


def measure(*arguments: str) -> Row:
    """Runs the demo once."""
    start = time.perf_counter()
    first, spent, all_done, seen = None, 0.0, None, ""
    with subprocess.Popen(
        [str(Path(sys.executable).with_name("rolloutpool")), "demo", *arguments],
        cwd=ROOT,
        env={**os.environ, **ENVIRONMENT, "PYTHONUNBUFFERED": "1", "COLUMNS": "200"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            seen += line
            if first is None and _FIRST.search(line):
                first, spent = time.perf_counter() - start, _cpu_seconds(process.pid)
            if _MISMATCHES.search(line):
                all_done = time.perf_counter() - start
    if process.returncode or first is None or all_done is None:
        raise AssertionError(f"the demo ended with {process.returncode}:\n{seen[-2000:]}")
    return {
        "first result, s": first,
        "all checked, s": all_done,
        "stopped, s": time.perf_counter() - start,
        "CPU to the first result, s": spent,
    }


def _cpu_seconds(pid: int) -> float:
    """Returns user and system seconds of a process and of its living descendants."""
    parents, seconds = {}, {}
    for path in Path("/proc").iterdir():
        if not path.name.isdecimal():
            continue
        try:
            fields = (path / "stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        parents[int(path.name)] = int(fields[1])
        seconds[int(path.name)] = (int(fields[11]) + int(fields[12])) / _TICKS

    def descends(child: int) -> bool:
        while child in parents and child != pid:
            child = parents[child]
        return child == pid

    return sum(spent for child, spent in seconds.items() if descends(child))


def main() -> None:
    """Runs the demo several times and prints a table."""
    options = parser("demo", __doc__)
    options.add_argument("--runs", type=int, default=RUNS)
    chosen = options.parse_args()
    rows: list[Row] = [{"run": run, **measure()} for run in range(1, 2 if chosen.quick else chosen.runs + 1)]
    emit(
        "demo",
        rows,
        chosen,
        title="The demo, from nothing",
        measures=(
            "Wall seconds from the start of `rolloutpool demo` to its first result, to the end of its check of all "
            "masks and to its end; and CPU seconds of the command and its children up to the first result: Redis, API, "
            "two workers, Flower, the scripted trainer. The budget is 5 s to the first result."
        ),
        leaves_out=(
            "Installation, which compiles all bytecode: without that, the first start takes twice as long. A cold page "
            "cache. On two cores the wall seconds cannot be less than half of the CPU seconds."
        ),
        plots=(
            Plot(
                kind="bar",
                x="run",
                y=("first result, s", "all checked, s", "CPU to the first result, s"),
                unit="s",
                budget=5,
            ),
        ),
    )


if __name__ == "__main__":
    main()
