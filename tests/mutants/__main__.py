"""`python -m tests.mutants [ID ...] [--subject X] [--processes 2] [--limit 60] [--write FILE]` tries mutants.

1. Each test module that is needed runs once in a copy of the tree without a fault: the baseline. It must pass.
2. Each mutant is put into a copy of its own, and its tests are run there, as many of them as fit into the limit.
3. A line says what became of it. With `--write` the table has it too; rows of other mutants stay as they are.

Exit code 1 when a mutant is broken, or one lives that the table calls killed.
"""

import argparse
import shutil
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.mutants.mutant import ROOT, SUBJECTS, Mutant, read_mutants
from tests.mutants.selection import selected_tests
from tests.mutants.table import read_results, result_cell, write_table
from tests.mutants.tree import FOLDER, copy_of, first_copy
from tests.mutants.trial import Result, Trial, run_tests

DOCUMENT = ROOT / "tests" / "mutants" / "README.md"
PART = 0.7
"""Of the limit, which the tests of a mutant may take without it: a machine is not always as fast."""


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants")
    parser.add_argument("ids", nargs="*", metavar="ID")
    parser.add_argument("--subject", choices=SUBJECTS)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--limit", type=float, default=60.0, help="seconds for the tests of one mutant")
    parser.add_argument("--write", type=Path, metavar="FILE", help="the table, tests/mutants/README.md")
    arguments = parser.parse_args()
    mutants = read_mutants()
    unknown = set(arguments.ids) - {mutant.id for mutant in mutants}
    if unknown:
        parser.error(f"no such mutants: {' '.join(sorted(unknown))}")
    wanted = [
        mutant
        for mutant in mutants
        if (not arguments.ids or mutant.id in arguments.ids) and arguments.subject in (None, mutant.subject)
    ]
    trials = try_all(wanted, processes=arguments.processes, limit_s=arguments.limit)
    before = read_results(DOCUMENT)
    if arguments.write is not None:
        results = read_results(arguments.write) | {name: result_cell(trial) for name, trial in trials.items()}
        write_table(arguments.write, mutants, results)
    lost = [name for name, trial in trials.items() if trial.result is Result.ALIVE and "killed" in before.get(name, "")]
    broken = [name for name, trial in trials.items() if trial.result is Result.BROKEN]
    for what, names in (("live now", lost), ("broken", broken)):
        if names:
            print(f"{what}: {' '.join(names)}", file=sys.stderr)
    return 1 if lost or broken else 0


def try_all(mutants: Sequence[Mutant], *, processes: int, limit_s: float) -> dict[str, Trial]:
    """Tries mutants, as many at once as there are processes; prints a line for each."""
    base = first_copy()
    selected = {mutant.id: selected_tests(mutant) for mutant in mutants}
    modules = sorted({test for tests in selected.values() for test in tests})
    with ThreadPoolExecutor(processes) as pool:
        baseline = {}
        # One that takes longer fits into no mutant's time.
        ran = pool.map(lambda test: run_tests(base, [test], PART * limit_s), modules)
        for test, trial in zip(modules, ran, strict=True):
            baseline[test] = trial
            print(f"baseline {trial.seconds:5.1f} s  {test}", flush=True)
            if trial.result not in (Result.ALIVE, Result.TIMEOUT):
                print(trial.said, file=sys.stderr)
        trials = {}
        tried = pool.map(lambda mutant: _try(mutant, base, selected[mutant.id], baseline, limit_s), mutants)
        for mutant, trial in zip(mutants, tried, strict=True):
            trials[mutant.id] = trial
            print(f"{mutant.id:12} {trial.seconds:5.1f} s  {result_cell(trial)}", flush=True)
            if trial.result is Result.BROKEN:
                print(trial.said, file=sys.stderr)
    shutil.rmtree(FOLDER)
    return trials


def _try(mutant: Mutant, base: Path, tests: Sequence[str], baseline: dict[str, Trial], limit_s: float) -> Trial:
    if not mutant.fits():
        return Trial(Result.BROKEN, 0.0, said=f"{mutant.file} does not have its text exactly once")
    failing = [test for test in tests if baseline[test].result in (Result.KILLED, Result.BROKEN)]
    if failing:
        return Trial(Result.BROKEN, 0.0, said=f"these fail without it: {' '.join(failing)}")
    fitting = _fitting(tests, baseline, PART * limit_s)
    if not fitting:
        return Trial(Result.BROKEN, 0.0, said=f"no test of it takes less than {PART * limit_s} s, or it has none")
    root = copy_of(base, mutant.id)
    mutant.apply(root)
    try:
        return run_tests(root, fitting, limit_s)
    finally:
        shutil.rmtree(root)


def _fitting(tests: Sequence[str], baseline: dict[str, Trial], seconds: float) -> list[str]:
    """Those that fit, in their order; one that is too long is left out, and shorter ones behind it are not."""
    fitting = []
    for test in tests:
        if baseline[test].result is Result.ALIVE and baseline[test].seconds <= seconds:
            seconds -= baseline[test].seconds
            fitting.append(test)
    return fitting


if __name__ == "__main__":
    sys.exit(main())
