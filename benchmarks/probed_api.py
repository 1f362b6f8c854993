"""An API process for a benchmark, which notes how late its loop is: `python -m benchmarks.probed_api FILE`.

The notes are those of `loop_ticks`. It prints its port.
Its settings come from the environment, as those of any API process.
"""

import asyncio
import sys
from contextlib import suppress
from pathlib import Path

from benchmarks.loop_ticks import note_delays

from rolloutpool_api.__main__ import ApiServer, listen
from rolloutpool_api.app import create_app
from rolloutpool_api.settings import ApiSettings


async def _serve(file: Path) -> None:
    settings = ApiSettings.from_environment()
    settings.start_logging()
    listener = listen(settings)
    print(listener.getsockname()[1], flush=True)
    probe = asyncio.create_task(note_delays(file))
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
