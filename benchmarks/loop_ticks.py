"""How late an event loop is: notes in one process, and another process that reads them.

Every 5 ms a timer notes when it fired and how late, in seconds on CLOCK_MONOTONIC, which all processes of a machine
share. The notes go to a file, as pairs of doubles.
"""

import asyncio
import time
from array import array
from pathlib import Path

TICK_SECONDS = 0.005
WRITE_EVERY = 20
"""Notes between two writes to the file."""


async def note_delays(file: Path) -> None:
    """Notes how late the running loop is, until the task is cancelled."""
    notes = array("d")
    while True:
        due = time.perf_counter() + TICK_SECONDS
        await asyncio.sleep(TICK_SECONDS)
        now = time.perf_counter()
        notes.extend((now, max(0.0, now - due)))
        if len(notes) >= 2 * WRITE_EVERY:
            with file.open("ab") as out:
                notes.tofile(out)
            del notes[:]


def read_delays(file: Path, start: float, stop: float) -> list[float]:
    """Waits until the notes reach `stop`; returns the delays between the two times, in milliseconds.

    Args:
        file: Where the other process writes.
        start: A time of `time.perf_counter`.
        stop: The same.
    """
    notes = array("d")
    while not notes or notes[-2] < stop:
        time.sleep(0.05)
        noted = file.read_bytes() if file.exists() else b""
        notes = array("d", noted[: len(noted) // 16 * 16])
    return [late * 1000 for at, late in zip(notes[::2], notes[1::2], strict=True) if at >= start and at - late <= stop]
