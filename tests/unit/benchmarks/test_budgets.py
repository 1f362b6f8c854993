"""A budget is broken only by more than the noise of its own run, and not by a benchmark that was not run."""

import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.budgets import BUDGETS, Budget, Verdict, judge
from benchmarks.matrix import Point, few_points, points
from benchmarks.report import Report, Row

ROOT = Path(__file__).parents[3]


def report(*rows: Row) -> Report:
    """Of the benchmark `speed`."""
    return Report(
        name="speed",
        title="",
        measures="",
        leaves_out="",
        command="",
        quick=True,
        machine={},
        versions={},
        rows=list(rows),
    )


@pytest.mark.parametrize(
    ("figure", "noise", "expected"),
    [
        (0.7, 0.0, Verdict.HOLDS),
        (0.8, 0.2, Verdict.IN_NOISE),
        (0.8, 0.05, Verdict.BROKEN),
        (0.8, None, Verdict.BROKEN),
        (None, None, Verdict.MISSING),
    ],
)
def test_an_upper_limit(figure: float | None, noise: float | None, expected: Verdict) -> None:
    budget = Budget(what="", benchmark="speed", row={"system": "pool"}, figure="cost", most=0.7)
    rows: list[Row] = [{"system": "other", "cost": 9.0}, {"system": "pool", "cost": figure, "cost ±": noise}]
    assert judge({"speed": report(*rows)}, [budget])[0][2] is expected


@pytest.mark.parametrize(
    ("figure", "noise", "expected"),
    [(3.0, 0.0, Verdict.HOLDS), (2.5, 0.6, Verdict.IN_NOISE), (2.5, 0.4, Verdict.BROKEN)],
)
def test_a_lower_limit(figure: float, noise: float, expected: Verdict) -> None:
    budget = Budget(what="", benchmark="speed", figure="rate", least=3)
    assert judge({"speed": report({"rate": figure, "rate ±": noise})}, [budget])[0][2] is expected


def test_what_is_known_not_to_hold_is_told_and_breaks_nothing() -> None:
    budget = Budget(what="", benchmark="speed", figure="rate", least=3, known=True)
    verdicts = [judge({"speed": report({"rate": rate})}, [budget])[0][2] for rate in (2.0, 3.0)]
    assert verdicts == [Verdict.KNOWN, Verdict.HOLDS]


def test_each_budget_that_is_known_not_to_hold_is_guarded_by_another() -> None:
    for known in (budget for budget in BUDGETS if budget.known):
        same = [b for b in BUDGETS if (b.benchmark, b.row, b.figure) == (known.benchmark, known.row, known.figure)]
        assert [budget.known for budget in same] == [True, False], known.what


def test_what_was_not_run_is_missing() -> None:
    assert {verdict for _, _, verdict in judge({})} == {Verdict.MISSING}


@pytest.mark.parametrize("chosen", [list(few_points(None)), list(points(None))], ids=["quick", "default"])
def test_every_budget_of_the_throughput_is_measured_by_a_point(chosen: list[Point]) -> None:
    measured: list[Row] = [
        {
            "varied": point.experiment,
            "system": system.value,
            "turns": point.turns,
            "in flight": point.in_flight,
            "latency, ms": point.latency_ms,
            "result, characters": point.result_characters or None,
        }
        for point in chosen
        for system in point.systems
    ]
    for budget in BUDGETS:
        if budget.benchmark == "throughput":
            assert budget.find(measured), budget.what


@pytest.mark.parametrize(("cost", "code"), [(0.5, 0), (9.0, 1)])
def test_the_command_says_so_by_its_exit_code(tmp_path: Path, cost: float, code: int) -> None:
    row: Row = {
        "varied": "in flight",
        "system": "pool",
        "turns": 3,
        "in flight": 100,
        "latency, ms": 0,
        "CPU / founding": cost,
        "CPU / founding ±": 0.1,
    }
    (tmp_path / "throughput.json").write_text(report(row).model_dump_json())
    command = [sys.executable, "-m", "benchmarks.budgets", "--folder", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert (Verdict.BROKEN in done.stdout) == bool(code)
