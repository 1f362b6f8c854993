"""Pictures and tables of docs/learning/README.md, from what runs left behind.

A point is one step of one seed, a line the mean of the seeds, nothing is smoothed. The grey line is the share that the
weights solve before the first step.
Text is real text in a middle grey on no background, so that it reads on light and dark pages.
"""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import matplotlib as mpl
from examples.learning.arms import ARMS
from examples.learning.records import Run, estimate, final, overall
from matplotlib.figure import Figure

PICTURES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "masks": ("Which tokens are trained", ("exact", "lengths", "lengths-recomputed", "ones")),
    "causes": (
        "What of a length difference does it",
        ("exact", "lengths-undrifted", "concatenated", "shifted", "exact-slow", "lengths-slow"),
    ),
    "failures": ("15 % of the model calls fail for good", ("exact", "faults-left-out", "faults-zero")),
    "staleness": ("Samples of older weights", ("exact", "stale", "stale-limit")),
}
"""Of each picture its title and its arms."""
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
_DASHES = ("-", "--", ":", "-.", "--", ":")
_GREY = "#777777"
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "rolloutpool",
    "font.size": 9.0,
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), _GREY),
}


def write_pictures(runs: Sequence[Run], folder: Path) -> list[Path]:
    """Draws each picture of which there is a run besides `exact`, and the first one with that alone."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, (title, arms) in PICTURES.items():
        curves = {arm: _curves(runs, arm) for arm in arms}
        needed = arms if name == "masks" else arms[1:]
        if any(curves[arm] for arm in needed):
            written.append(folder / f"{name}.svg")
            level = fmean(run.totals["solved before"] for run in _of(runs, "exact"))
            written[-1].write_text(draw(title, {arm: found for arm, found in curves.items() if found}, level))
    return written


def draw(title: str, curves: Mapping[str, Sequence[Sequence[float]]], level: float) -> str:
    """Returns an SVG.

    Args:
        title: Above the plot.
        curves: By arm, one curve per seed.
        level: What is solved before the first step.
    """
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(8, 4), layout="constrained")
        axes = figure.add_subplot()
        axes.axhline(level, color=_GREY, linewidth=1, label="before the first step")
        for number, (arm, found) in enumerate(curves.items()):
            length = min(map(len, found))
            steps = range(1, length + 1)
            colour = _COLOURS[number % len(_COLOURS)]
            means = [fmean(values) for values in zip(*(one[:length] for one in found), strict=True)]
            title_of = f"{ARMS[arm].title} ({_seeds(len(found))})"
            axes.plot(steps, means, label=title_of, color=colour, linestyle=_DASHES[number % len(_DASHES)])
            for one in found:
                axes.plot(steps, one[:length], ".", color=colour, alpha=0.35, markersize=4)
        axes.set(title=title, xlabel="optimiser steps", ylabel="rollouts solved", ylim=(-0.02, 1.02))
        axes.grid(axis="y", color=_GREY, alpha=0.3)
        figure.legend(loc="outside lower center", ncols=2, frameon=False)
        written = io.StringIO()
        figure.savefig(written, format="svg", transparent=True, metadata={"Date": None, "Title": title})
    return written.getvalue()


def table(runs: Sequence[Run]) -> str:
    """Returns a row of Markdown per arm; differences are taken within a seed."""
    heads = (
        "arm",
        "seeds",
        "solved after the run",
        "difference to `exact`",
        "solved during the run",
        "difference to `exact`",
        "tokens trained",
        "of these not sampled",
        "sampled and left out",
        "rollouts lost by faults",
    )
    rows = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    whole = {run.seed: run for run in _of(runs, "exact")}
    for name, arm in ARMS.items():
        found = _of(runs, name)
        if not found:
            continue
        pairs = [(run, whole[run.seed]) for run in found if run.seed in whole and name != "exact"]
        cells = [f"`{name}`: {arm.title}", str(len(found))]
        for figure in (final, overall):
            cells.append(str(estimate([figure(run) for run in found])))
            cells.append(str(estimate([figure(run) - figure(exact) for run, exact in pairs])) if pairs else "")
        cells += [
            f"{fmean(sum(run.steps[key]) for run in found):,.0f}" for key in ("trained", "foreign", "missed", "lost")
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def kills_table(runs: Sequence[Run]) -> str:
    """Returns a row of Markdown per run with kills, beside the same run without; empty if there is no such pair."""
    quiet = {(run.arm, run.seed): run for run in runs if not run.kills}
    pairs = [(run, quiet[run.arm, run.seed]) for run in runs if run.kills and (run.arm, run.seed) in quiet]
    if not pairs:
        return ""
    heads = (
        "run",
        "killed",
        "rollouts that another worker went on with",
        "steps that are alike",
        "solved after the run, with and without",
        "seconds, with and without",
    )
    rows = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for run, other in pairs:
        cells = [
            f"`{run.arm}`, seed {run.seed}",
            ", ".join(run.kills),
            f"{sum(run.steps['retried']):.0f}",
            f"{alike(run, other)} of {len(run.steps['solved'])}",
            f"{final(run):.3f}, {final(other):.3f}",
            f"{run.totals['seconds']:.0f}, {other.totals['seconds']:.0f}",
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def alike(run: Run, other: Run) -> int:
    """Counts the steps in which two runs sampled as many tokens, called as many tools, and solved as much."""
    figures = [
        zip(*(each.steps[name] for name in ("sampled", "calls", "solved")), strict=True) for each in (run, other)
    ]
    return sum(one == two for one, two in zip(*figures, strict=True))


def _seeds(n: int) -> str:
    return "1 seed" if n == 1 else f"{n} seeds"


def _of(runs: Sequence[Run], arm: str) -> list[Run]:
    return [run for run in runs if run.arm == arm and not run.kills]


def _curves(runs: Sequence[Run], arm: str) -> list[list[float]]:
    return [run.steps["solved"] for run in _of(runs, arm)]
