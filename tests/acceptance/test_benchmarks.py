"""The benchmark of the published throughput runs, with numbers too small to say anything."""

from collections import Counter
from pathlib import Path

from benchmarks.budgets import judge
from benchmarks.load import System
from benchmarks.matrix import Point
from benchmarks.report import Report, emit, parser
from benchmarks.throughput import measure, rows


def test_throughput_of_all_systems(tmp_path: Path) -> None:
    point = Point(
        experiment="in flight",
        turns=3,
        in_flight=4,
        latency_ms=5,
        slow_ms=20,
        workers=1,
        tickets_of=2,
        result_characters=300,
    )
    repeats = list(measure(point, repeats=2, seconds=0.1, rollouts=24))
    options = parser("throughput", "").parse_args(["--quick", "--out", str(tmp_path / "throughput.json")])
    emit("throughput", rows(point, repeats), options, title="", measures="", leaves_out="")
    written = Report.read(tmp_path / "throughput.json")
    assert Counter(row["system"] for row in written.rows) == dict.fromkeys(System, 1)
    for row in written.rows:
        assert isinstance(row["rollouts/s"], float)
        # Three turns of 5 ms, four at a time, and no quicker.
        assert 0 < row["rollouts/s"] <= 4 / 0.015
        assert row["rollouts"] == 24
    pool = next(row for row in written.rows if row["system"] == System.POOL)
    assert all(isinstance(pool[name], float) for name in ("rate / founding", "rate / founding ±", "rate / ideal"))
    assert judge({"throughput": written})
