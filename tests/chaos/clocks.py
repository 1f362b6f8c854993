"""Clocks that jump, by libfaketime, where it is installed (Debian: `apt-get install faketime`).

A process that is started with `env` sees its wall clock shifted by what its file says; its monotonic clock is the real
one. So do its children.
"""

from collections.abc import Mapping
from pathlib import Path

PLACES = ("/usr/lib/x86_64-linux-gnu/faketime", "/usr/lib/aarch64-linux-gnu/faketime", "/usr/lib/faketime")


def find_library() -> Path | None:
    """Where libfaketime is; None where it is not installed."""
    for place in PLACES:
        # The variant for programs with threads.
        library = Path(place) / "libfaketimeMT.so.1"
        if library.exists():
            return library
    return None


class Clock:
    """The wall clock of some processes."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._library = find_library()
        self.jump(0)

    def jump(self, seconds: int) -> None:
        """From now on the clock is so far ahead of the true one; behind it, where this is below zero."""
        # Renamed into place: a process may read it at any moment.
        fresh = self._file.with_suffix(".new")
        fresh.write_text(f"{seconds:+d}s\n")
        fresh.rename(self._file)

    @property
    def env(self) -> Mapping[str, str]:
        """What makes a process see this clock; nothing without the library."""
        if self._library is None:
            return {}
        return {
            "LD_PRELOAD": str(self._library),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            # It looks into the file once a second, and not at each call.
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_DISABLE_SHM": "1",
        }
