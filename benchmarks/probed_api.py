"""An API process for a benchmark, which notes how late its loop is: `python -m benchmarks.probed_api FILE`.

Every 5 ms a timer notes when it fired and how late, in seconds on CLOCK_MONOTONIC, as pairs of doubles in the file.
It prints its port.
Its settings come from the environment, as those of any API process.
"""

import asyncio
import sys
import time
from array import array
from contextlib import suppress
from pathlib import Path

from rolloutpool_api.__main__ import ApiServer, listen
from rolloutpool_api.app import create_app
from rolloutpool_api.settings import ApiSettings

_TICK_SECONDS = 0.005
_NOTE_EVERY = 20


async def _probe(file: Path) -> None:
    notes = array("d")
    while True:
        due = time.perf_counter() + _TICK_SECONDS
        await asyncio.sleep(_TICK_SECONDS)
        now = time.perf_counter()
        notes.extend((now, max(0.0, now - due)))
        if len(notes) >= 2 * _NOTE_EVERY:
            with file.open("ab") as out:
                notes.tofile(out)
            del notes[:]


async def _serve(file: Path) -> None:
    settings = ApiSettings.from_environment()
    settings.start_logging()
    listener = listen(settings)
    print(listener.getsockname()[1], flush=True)
    probe = asyncio.create_task(_probe(file))
    try:
        await ApiServer(create_app(settings)).serve(sockets=[listener])
    finally:
        probe.cancel()
        with suppress(asyncio.CancelledError):
            await probe


def main() -> None:
    """Serves until it is killed."""
    import uvloop

    uvloop.run(_serve(Path(sys.argv[1])))


if __name__ == "__main__":
    main()
