"""`rolloutpool logs`: what the processes of the pool on this machine have logged, in the order of time.

Each process of `rolloutpool up` writes a file in the state directory. This command reads their ends, and with
`--follow` what is added. Other pools log to standard error, where their service manager or container engine keeps it.
"""

import json
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rolloutpool_trainer.cli import completion, options

if TYPE_CHECKING:
    from rolloutpool_trainer.cli.documents import LogLine

TAIL_BYTES = 4_000_000
"""Read of each file at the most, from its end; with `--id` all of it."""
POLL_SECONDS = 0.2
_SHOWN_FIRST = ("timestamp", "level", "event")


def logs(
    processes: Annotated[
        list[str] | None,
        typer.Argument(help="Names such as api or worker-1; none: all.", autocompletion=completion.worker_logs),
    ] = None,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="The last so many lines of all of them.")] = 50,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what is added, until Ctrl-C.")] = False,
    identity: Annotated[
        str | None, typer.Option("--id", help="Only lines that name this batch, rollout or worker.")
    ] = None,
    state: options.StatePath = None,
    as_json: options.Json = False,
) -> None:
    """Show the logs of the pool that `rolloutpool up` runs on this machine."""
    from rolloutpool_trainer.cli import console
    from rolloutpool_trainer.local.state import default_state

    directory = (state or default_state()).expanduser() / "logs"
    files = _files(directory, processes or ())
    tails = [_Tail(file, identity) for file in files]
    for _, line in sorted((pair for tail in tails for pair in tail.last(lines)), key=lambda pair: pair[0])[-lines:]:
        _print(line, as_json=as_json)
    while follow:
        added = [pair for tail in tails for pair in tail.added()]
        for _, line in sorted(added, key=lambda pair: pair[0]):
            _print(line, as_json=as_json)
        if not added:
            console.out.file.flush()
            time.sleep(POLL_SECONDS)


def _files(directory: Path, names: Sequence[str]) -> list[Path]:
    from rolloutpool_trainer.errors import LocalPoolError

    found = {file.stem: file for file in sorted(directory.glob("*.log"))}
    if not found:
        raise LocalPoolError(
            f"no logs in {directory}: `rolloutpool up` writes them; --state names another directory. Other pools log "
            "to standard error"
        )
    if unknown := [name for name in names if name not in found]:
        raise typer.BadParameter(f"no process {unknown[0]!r}; there are {', '.join(found)}", param_hint="PROCESSES")
    return [found[name] for name in names] if names else list(found.values())


class _Tail:
    """One file of log: its last lines, then what is added."""

    def __init__(self, file: Path, identity: str | None) -> None:
        self._file = file
        self._identity = identity.encode() if identity else None
        self._at = 0
        self._time = ""
        """Of the last line that had one; a line without one (of a traceback, say) belongs to the line before it."""

    def last(self, count: int) -> "list[tuple[str, LogLine]]":
        """Returns the last lines with their times."""
        start = 0 if self._identity else max(self._file.stat().st_size - TAIL_BYTES, 0)
        self._at = start
        raw = self._read()
        if start:
            # It begins in the middle of a line.
            next(raw, None)
        return list(deque((self._timed(line) for line in raw), maxlen=count))

    def added(self) -> "list[tuple[str, LogLine]]":
        """Returns the lines that came since."""
        try:
            if self._file.stat().st_size < self._at:
                # The pool was started again, and the file with it.
                self._at = 0
            return [self._timed(line) for line in self._read()]
        except FileNotFoundError:
            return []

    def _read(self) -> Iterator[bytes]:
        with self._file.open("rb") as opened:
            opened.seek(self._at)
            for line in opened:
                # A line that is being written is read again once it is whole.
                if not line.endswith(b"\n"):
                    return
                self._at += len(line)
                if self._identity is None or self._identity in line:
                    yield line

    def _timed(self, raw: bytes) -> "tuple[str, LogLine]":
        from rolloutpool_trainer.cli.documents import LogLine

        text = raw.decode("utf-8", "replace").rstrip("\r\n")
        entry = _entry(text)
        if entry is not None and isinstance(stamp := entry.get("timestamp"), str):
            self._time = stamp
        return self._time, LogLine(process=self._file.stem, text=text, entry=entry)


def _entry(text: str) -> dict[str, Any] | None:
    if not text.startswith("{"):
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _print(line: "LogLine", *, as_json: bool) -> None:
    from rolloutpool_trainer.cli import console

    if as_json:
        console.document(line, one_line=True)
        return
    if line.entry is None:
        console.line(f"{line.process}  {line.text}")
        return
    fields = [str(line.entry[name]) for name in _SHOWN_FIRST if name in line.entry]
    fields += [f"{name}={value}" for name, value in line.entry.items() if name not in (*_SHOWN_FIRST, "logger")]
    console.line(f"{line.process}  {'  '.join(fields)}")
