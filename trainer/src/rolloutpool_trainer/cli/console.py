"""How commands print. Text of models, trainers and the network passes `printable` and is never read as markup."""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.box import HEAVY_HEAD
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text
from typer import echo

from rolloutpool_trainer.viewer.sanitize import printable

if TYPE_CHECKING:
    from pydantic import BaseModel

    from rolloutpool_trainer.client.sync import RolloutClient

out = Console(markup=False, highlight=False, emoji=False, soft_wrap=True)
err = Console(stderr=True, markup=False, highlight=False, emoji=False, soft_wrap=True)
_ANY_WIDTH = 1_000_000
"""More columns than a table has."""


def client(url: str, api_key: str | None) -> "RolloutClient":
    """Makes a client that gives up after 5 seconds, because a person waits at the terminal."""
    from rolloutpool_trainer.client.sync import RolloutClient

    return RolloutClient(url, api_key, timeout=5.0)


def line(text: str = "", style: str = "") -> None:
    """Prints one line on stdout."""
    out.print(Text(printable(text), style=style))


def document(value: "BaseModel", *, one_line: bool = False) -> None:
    """Prints a model as JSON on stdout, in ASCII: so a text can neither break a line nor control the terminal."""
    fields = value.model_dump(mode="json")
    echo(json.dumps(fields, separators=(",", ":")) if one_line else json.dumps(fields, indent=2))


def note(text: str) -> None:
    """Prints one line on stderr: what the command does, not its result."""
    err.print(Text(printable(text), style="dim"))


def fail(error: Exception) -> None:
    """Prints an error on stderr, with all faults of a rejected batch."""
    from rolloutpool_trainer.errors import BatchRejected

    err.print(Text.assemble(("error: ", "bold red"), printable(str(error))))
    if isinstance(error, BatchRejected):
        for fault in error.faults:
            err.print(Text.assemble("  ", (printable(fault.path), "bold"), ": ", printable(fault.message)))
        hidden = error.total_faults - len(error.faults)
        if hidden:
            err.print(Text(f"  … and {hidden} more"))


def table(
    columns: Sequence[str], rows: Sequence[Sequence[object]], title: str | None = None, *, lines: bool = True
) -> None:
    """Prints a table on stdout, with numbers to the right.

    A terminal folds what is too wide for it. A file or a program gets each row as one line, so that it can be searched.
    """
    shown = Table(title=title, title_justify="left", box=HEAVY_HEAD if lines else None, pad_edge=lines)
    for index, column in enumerate(columns):
        numeric = bool(rows) and all(isinstance(row[index], int | float) for row in rows)
        shown.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        cells = [_cell(value) for value in row]
        shown.add_row(*(cells if out.is_terminal else map(_one_line, cells)))
    if not out.is_terminal:
        shown.width = Measurement.get(out, out.options.update(width=_ANY_WIDTH), shown).maximum
    out.print(shown, soft_wrap=False, crop=False)


def grid(values: Mapping[str, object]) -> Text:
    """Makes lines of names and values. They are never wrapped, so that addresses can be copied."""
    width = max(map(len, values), default=0)
    lines = [
        Text.assemble((printable(name).ljust(width), "bold"), "  ", _cell(value)) for name, value in values.items()
    ]
    return Text("\n").join(lines)


def pairs(values: Mapping[str, object]) -> None:
    """Prints a grid."""
    out.print(grid(values))


def _one_line(cell: Text) -> Text:
    return Text("\\n", style=cell.style).join(cell.split("\n")) if "\n" in cell.plain else cell


def _cell(value: object) -> Text:
    if isinstance(value, Text):
        return value
    if isinstance(value, float):
        return Text(f"{value:,.2f}")
    return Text(f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else printable(str(value)))
