"""A plot as SVG, from rows and a `Plot`: lines over numbers, or groups of bars over names.

Colours are told apart by colour-blind people too, and lines also by their dashes; text follows the page's colour
scheme. The same rows give the same bytes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from benchmarks.report import Cell, Plot, Row

__all__ = ["draw"]

WIDTH, HEIGHT = 800, 400
LEFT, RIGHT, TOP, BOTTOM = 70, 240, 40, 70
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
DASHES = ("", "7 3", "2 3", "9 3 2 3", "4 2", "1 2")
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#222}.title{font-weight:600;font-size:14px}"
    ".grid{stroke:#8884;stroke-width:1}.budget{stroke:#888;stroke-dasharray:6 4;stroke-width:1.5}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}}"
)


@dataclass(frozen=True)
class _Scale:
    """Numbers to pixels."""

    ticks: tuple[float, ...]
    log: bool
    begin: float
    end: float
    """Pixels of the first and the last tick."""

    def at(self, value: float) -> float:
        """The pixel of a value; below the first tick it is the first tick's."""
        low, high = self._of(self.ticks[0]), self._of(self.ticks[-1])
        share = (self._of(max(value, self.ticks[0])) - low) / (high - low)
        return round(self.begin + share * (self.end - self.begin), 1)

    def _of(self, value: float) -> float:
        return math.log10(value) if self.log else value


def draw(title: str, plot: Plot, rows: Sequence[Row]) -> str:
    """The SVG; raises ValueError where no row has a number to plot."""
    chosen = [row for row in rows if all(row.get(name) == cell for name, cell in plot.only.items())]
    series = _series(plot, chosen)
    if not series:
        raise ValueError(f"{title}: no row has a number in {', '.join(plot.y)}")
    values = [y for points in series.values() for _, y in points]
    y_scale = _scale([*values, *([plot.budget] if plot.budget else [])], plot.log_y, HEIGHT - BOTTOM, TOP)
    parts = _lines(plot, series, y_scale) if plot.kind == "line" else _bars(series, y_scale)
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        f"<title>{escape(title)}</title><style>{_STYLE}</style>",
        _text(LEFT, 20, title, "title"),
        _text(14, (TOP + HEIGHT - BOTTOM) / 2, plot.unit, anchor="middle", turn=-90),
    ]
    grid = [part for tick in y_scale.ticks for part in _tick(y_scale.at(tick), tick)]
    if plot.budget:
        y = y_scale.at(plot.budget)
        parts += [
            f'<line class="budget" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>',
            _text(WIDTH - RIGHT + 8, y + 4, f"budget {_short(plot.budget)}"),
        ]
    return "\n".join([*head, *grid, *parts, *_legend(list(series), plot.kind), "</svg>"]) + "\n"


def _series(plot: Plot, rows: Sequence[Row]) -> dict[str, list[tuple[Cell, float]]]:
    found: dict[str, list[tuple[Cell, float]]] = {}
    for row in rows:
        for column in plot.y:
            value = row.get(column)
            if isinstance(value, int | float) and (value > 0 or not plot.log_y):
                name = column if plot.series is None else _name(row.get(plot.series), plot.series)
                found.setdefault(name, []).append((row.get(plot.x), float(value)))
    return found


def _lines(plot: Plot, series: dict[str, list[tuple[Cell, float]]], y_scale: _Scale) -> list[str]:
    numbers = {
        name: sorted((float(x), y) for x, y in points if isinstance(x, int | float)) for name, points in series.items()
    }
    scale = _scale([x for points in numbers.values() for x, _ in points], plot.log_x, LEFT, WIDTH - RIGHT)
    parts = [_text(scale.at(tick), HEIGHT - BOTTOM + 18, _short(tick), anchor="middle") for tick in scale.ticks]
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - BOTTOM + 40, plot.x, anchor="middle"))
    for (colour, dash), points in zip(_looks(len(numbers)), numbers.values(), strict=True):
        path = " ".join(f"{scale.at(x)},{y_scale.at(y)}" for x, y in points)
        parts.append(
            f'<polyline fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}" points="{path}"/>'
        )
        parts += [f'<circle cx="{scale.at(x)}" cy="{y_scale.at(y)}" r="3" fill="{colour}"/>' for x, y in points]
    return parts


def _bars(series: dict[str, list[tuple[Cell, float]]], y_scale: _Scale) -> list[str]:
    names = list(dict.fromkeys(_name(x) for points in series.values() for x, _ in points))
    room = (WIDTH - RIGHT - LEFT) / len(names)
    width = round(room * 0.8 / len(series), 1)
    parts = []
    for number, ((colour, _), points) in enumerate(zip(_looks(len(series)), series.values(), strict=True)):
        for x, y in points:
            left = round(LEFT + room * (names.index(_name(x)) + 0.1) + number * width, 1)
            top = y_scale.at(y)
            height = round(HEIGHT - BOTTOM - top, 1)
            parts.append(f'<rect x="{left}" y="{top}" width="{width}" height="{height}" fill="{colour}"/>')
            parts.append(_text(left + width / 2, top - 4, _short(y), anchor="middle"))
    for place, name in enumerate(names):
        for line, words in enumerate(_wrapped(name, max(8, int(room / 6.5)))):
            parts.append(_text(LEFT + room * (place + 0.5), HEIGHT - BOTTOM + 16 + 13 * line, words, anchor="middle"))
    return parts


def _legend(names: Sequence[str], kind: str) -> list[str]:
    parts = []
    for number, (name, (colour, dash)) in enumerate(zip(names, _looks(len(names)), strict=True)):
        y, x = TOP + 40 + 18 * number, WIDTH - RIGHT + 8
        if kind == "line":
            style = f'stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"'
            parts.append(f'<line x1="{x}" x2="{x + 22}" y1="{y - 4}" y2="{y - 4}" {style}/>')
        else:
            parts.append(f'<rect x="{x}" y="{y - 10}" width="12" height="12" fill="{colour}"/>')
        parts.append(_text(x + 28, y, name))
    return parts


def _looks(count: int) -> list[tuple[str, str]]:
    return [(COLOURS[i % len(COLOURS)], DASHES[i % len(DASHES)]) for i in range(count)]


def _tick(y: float, value: float) -> list[str]:
    line = f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>'
    return [line, _text(LEFT - 8, y + 4, _short(value), anchor="end")]


def _scale(values: Sequence[float], log: bool, begin: float, end: float) -> _Scale:
    low, high = min(values), max(values)
    if log:
        first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
        return _Scale(tuple(10.0**power for power in range(first, max(last, first + 1) + 1)), True, begin, end)
    step = _step(high)
    return _Scale(tuple(step * number for number in range(math.ceil(high / step) + 1)), False, begin, end)


def _step(high: float) -> float:
    """A round number that goes four to ten times into the highest value."""
    rough = (high or 1.0) / 8
    unit: float = 10.0 ** math.floor(math.log10(rough))
    return next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= rough)


def _text(x: float, y: float, words: str, kind: str = "", *, anchor: str = "start", turn: int = 0) -> str:
    turned = f' transform="rotate({turn} {x} {y})"' if turn else ""
    style = f' class="{kind}"' if kind else ""
    return f'<text x="{round(x, 1)}" y="{round(y, 1)}" text-anchor="{anchor}"{style}{turned}>{escape(words)}</text>'


def _wrapped(words: str, width: int) -> list[str]:
    lines = [""]
    for word in words.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
            lines.append(word)
        else:
            lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


def _short(value: float) -> str:
    if value >= 10_000:
        return f"{value / 1000:,.0f}k"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _name(cell: Cell, column: str = "") -> str:
    """A number alone would not say what it counts."""
    return f"{cell:,} {column}".strip() if isinstance(cell, int) else str(cell)
