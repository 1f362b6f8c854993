"""Logs of JSON lines that outlive the process which writes them.

A line is one write, so kill -9 loses none that was written before; a line that the kill cut in two was not written.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson


class Record:
    """One log, open for appending; safe to use from several threads."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        size = os.fstat(self._file).st_size
        if size and os.pread(self._file, 1, size - 1) != b"\n":
            os.write(self._file, b"\n")

    def write(self, event: str, /, **fields: Any) -> None:
        """Notes an event with the time of this machine's clock."""
        os.write(self._file, orjson.dumps({"event": event, **fields, "at": time.time()}) + b"\n")


def entries(path: Path) -> Iterator[dict[str, Any]]:
    """What was written, in order; without the lines that were cut."""
    with path.open("rb") as file:
        for line in file:
            try:
                yield orjson.loads(line)
            except orjson.JSONDecodeError:
                continue
