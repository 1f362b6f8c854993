"""Draws a plot of a benchmark's rows as SVG: lines over numbers, or groups of bars over names.

Lines also differ by their dashes, for readers who do not see the colours apart. Text is real text in a middle grey on a
transparent background, so that it can be read, searched and copied on light and dark pages. The same rows give the same
bytes, so that a run that changed nothing changes no file.
"""

import io
from collections.abc import Sequence
from textwrap import fill
from typing import Any

import matplotlib as mpl
from benchmarks.report import Cell, Plot, Row
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""Okabe and Ito's palette."""
_DASHES = ("-", "--", ":", "-.", (0, (4, 2)), (0, (1, 2)))
_GREY = "#777777"
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "rolloutpool",
    "font.family": "sans-serif",
    "font.size": 9.0,
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), _GREY),
}

_Series = dict[str, list[tuple[Cell, float]]]


def draw(title: str, plot: Plot, rows: Sequence[Row]) -> str:
    """Returns the SVG; raises what `figure` raises."""
    with mpl.rc_context(_STYLE):
        written = io.StringIO()
        figure(title, plot, rows).savefig(
            written, format="svg", transparent=True, metadata={"Date": None, "Title": title}
        )
    return written.getvalue()


def figure(title: str, plot: Plot, rows: Sequence[Row]) -> Figure:
    """Returns matplotlib's figure.

    Args:
        title: above the plot.
        plot: which columns become what.
        rows: of the benchmark.

    Raises:
        ValueError: no row has a number to plot.
    """
    series = _series(plot, [row for row in rows if all(row.get(name) == cell for name, cell in plot.only.items())])
    if not series:
        raise ValueError(f"{title}: no row has a number in {', '.join(plot.y)}")
    made = Figure(figsize=(8, 4), layout="constrained")
    axes = made.add_subplot()
    (_lines if plot.kind == "line" else _bars)(axes, plot, series)
    axes.set(title=title, ylabel=plot.unit, yscale="log" if plot.log_y else "linear")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
    axes.set_axisbelow(True)
    axes.grid(axis="y", color=_GREY, alpha=0.3)
    if not plot.log_y:
        axes.set_ylim(bottom=0)
    if plot.budget:
        axes.axhline(plot.budget, color=_GREY, linestyle="--", label=f"budget {_short(plot.budget)}")
    made.legend(loc="outside right upper", frameon=False)
    return made


def _series(plot: Plot, rows: Sequence[Row]) -> _Series:
    found: _Series = {}
    for row in rows:
        for column in plot.y:
            value = row.get(column)
            if isinstance(value, int | float) and (value > 0 or not plot.log_y):
                name = column if plot.series is None else _name(row.get(plot.series), plot.series)
                found.setdefault(name, []).append((row.get(plot.x), float(value)))
    return found


def _lines(axes: Axes, plot: Plot, series: _Series) -> None:
    for number, (name, points) in enumerate(series.items()):
        numbers = sorted((float(x), y) for x, y in points if isinstance(x, int | float))
        axes.plot(
            [x for x, _ in numbers],
            [y for _, y in numbers],
            color=_COLOURS[number % len(_COLOURS)],
            linestyle=_DASHES[number % len(_DASHES)],
            marker="o",
            markersize=4,
            label=name,
        )
    axes.set(xlabel=plot.x, xscale="log" if plot.log_x else "linear")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))


def _bars(axes: Axes, plot: Plot, series: _Series) -> None:
    names = list(dict.fromkeys(_name(x) for points in series.values() for x, _ in points))
    width = 0.8 / len(series)
    for number, (name, points) in enumerate(series.items()):
        bars = axes.bar(
            [names.index(_name(x)) + (number - (len(series) - 1) / 2) * width for x, _ in points],
            [y for _, y in points],
            width,
            color=_COLOURS[number % len(_COLOURS)],
            label=name,
        )
        axes.bar_label(bars, [_short(y) for _, y in points])
    # About 100 letters fit beside each other.
    axes.set_xticks(range(len(names)), [fill(name, max(8, 100 // len(names))) for name in names])


def _short(value: float) -> str:
    if value >= 10_000:
        return f"{value / 1000:,.0f}k"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _name(cell: Cell, column: str = "") -> str:
    """Returns a cell as text; a number with its column, because alone it would not say what it counts."""
    return f"{cell:,} {column}".strip() if isinstance(cell, int) else str(cell)
