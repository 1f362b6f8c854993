"""Tables, plots and the page that is made of them."""

import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from benchmarks.budgets import BUDGETS, Verdict
from benchmarks.plotting import draw, figure
from benchmarks.publish import publish
from benchmarks.report import Plot, Report, Row, emit, parser, table

ROOT = Path(__file__).parents[3]
ROWS: list[Row] = [
    {"way": "poll", "results": 10, "s": 0.5, "s ±": 0.25},
    {"way": "push & wait", "results": 10_000, "s": 123.4, "s ±": None},
]
SVG = "{http://www.w3.org/2000/svg}"


def report(folder: Path, name: str, *arguments: str, plots: tuple[Plot, ...] = ()) -> Report:
    options = parser(name, "").parse_args([*arguments, "--out", str(folder / f"{name}.json")])
    return emit(name, ROWS, options, title=f"About {name}", measures="Seconds.", leaves_out="Hours.", plots=plots)


def words(svg: str) -> set[str]:
    return {element.text or "" for element in ET.fromstring(svg).iter(SVG + "text")}


def test_a_table_has_every_column_and_no_false_precision() -> None:
    assert table([*ROWS, {"way": "events", "late": 3}]).splitlines() == [
        "| way | results | s | s ± | late |",
        "| --- | --- | --- | --- | --- |",
        "| poll | 10 | 0.5 | 0.25 |  |",
        "| push & wait | 10,000 | 123 |  |  |",
        "| events |  |  |  | 3 |",
    ]


def test_what_is_written_is_read_again_and_names_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["reading.py", "--kills", "3", "--out", str(tmp_path / "reading.json")])
    written = report(tmp_path, "reading")
    assert Report.read(tmp_path / "reading.json") == written
    assert written.command == "python -m benchmarks.reading --kills 3"
    assert str(tmp_path) not in (tmp_path / "reading.json").read_text(encoding="utf-8")
    assert {"cpus", "cpu", "memory_gb", "system"} < set(written.machine)
    assert {"python", "redis", "celery"} < set(written.versions)


@pytest.mark.parametrize("log", [False, True])
def test_taller_bars_are_larger_figures(log: bool) -> None:
    plot = Plot(kind="bar", x="way", y=("s",), unit="s", log_y=log, budget=60)
    (axes,) = figure("Reading", plot, ROWS).axes
    poll, push = (bar.get_window_extent().height for bar in axes.patches)
    assert 0 < poll < push
    svg = draw("Reading", plot, ROWS)
    assert {"Reading", "poll", "push & wait", "budget 60"} <= words(svg)
    assert svg == draw("Reading", plot, ROWS), "the same rows must give the same bytes"


def test_lines_go_through_their_points_in_order() -> None:
    rows: list[Row] = [{"n": n, "kind": kind, "ms": ms} for n, kind, ms in ((100, "a", 9), (10, "a", 3), (10, "b", 1))]
    plot = Plot(kind="line", x="n", y=("ms",), unit="ms", series="kind", log_x=True)
    (axes,) = figure("Cost", plot, rows).axes
    first, second = (np.asarray(line.get_xydata()) for line in axes.lines)
    (left, low), (right, high) = axes.transData.transform(first)
    assert left < right
    assert low < high
    assert len(second) == 1
    assert {"a", "b"} <= words(draw("Cost", plot, rows))


def test_rows_that_a_plot_is_not_about_are_left_out() -> None:
    plot = Plot(kind="bar", x="way", y=("s",), unit="s", only={"results": 10})
    (axes,) = figure("Reading", plot, ROWS).axes
    assert len(axes.patches) == 1
    with pytest.raises(ValueError, match="no row has a number in s"):
        draw("Reading", plot, ROWS[1:])


def test_the_page_has_every_benchmark_with_its_plots(tmp_path: Path) -> None:
    plot = Plot(kind="bar", x="way", y=("s",), unit="s")
    reports = [report(tmp_path, "zebra"), report(tmp_path, "demo", plots=(plot,)), report(tmp_path, "submit")]
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "old.svg").touch()
    publish(reports, docs)
    page = (docs / "README.md").read_text(encoding="utf-8")
    assert page.index("## About submit") < page.index("## About demo") < page.index("## About zebra")
    assert "Not measured: Hours." in page
    assert f"`{reports[1].command}` on" in page
    assert table(ROWS) in page
    assert "![About demo](demo.svg)" in page
    assert sorted(path.name for path in docs.iterdir()) == ["README.md", "demo.svg"]


def test_quick_runs_are_not_published(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="demo again without --quick"):
        publish([report(tmp_path, "demo", "--quick")], tmp_path)


def test_the_published_run_has_every_budget() -> None:
    """A row that no benchmark writes would be missing for ever."""
    page = (ROOT / "docs" / "benchmarks" / "README.md").read_text(encoding="utf-8")
    for budget in BUDGETS:
        (line,) = [line for line in page.splitlines() if line.startswith(f"| {budget.what} |")]
        assert Verdict.MISSING.value not in line
