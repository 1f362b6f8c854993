"""How long the first use of a tokenizer takes, and for how long at once it stops the event loop of its worker.

    python -m benchmarks.tokenizer_load [FOLDER …]

Each tokenizer is loaded as a worker does it, in a thread beside a running loop. A timer of 2 ms on the loop shows by
how much it was late at the most: loading holds the GIL in a few long pieces. Without folders: those of
`make tokenizers`, and the one that comes with the package. Each is loaded in a process of its own, because what the
first load imports is paid once per worker, before its first ticket.
"""

import asyncio
import subprocess
import sys
import time
from pathlib import Path

import uvloop

from rolloutpool_common.rendering import TINY, TokenizerCache

TICK_SECONDS = 0.002
FOLDER = Path(__file__).parents[1] / "build" / "tokenizers"


async def measure(name: str) -> tuple[float, float]:
    """Loads a tokenizer; returns the seconds that it took, and the longest time for which the loop stood still."""
    cache = TokenizerCache(2)
    await cache.get(TINY)
    late, ended = 0.0, asyncio.Event()

    async def tick() -> None:
        nonlocal late
        while not ended.is_set():
            due = time.perf_counter() + TICK_SECONDS
            await asyncio.sleep(TICK_SECONDS)
            late = max(late, time.perf_counter() - due)

    ticking = asyncio.create_task(tick())
    # The timer runs before the load begins.
    await asyncio.sleep(0.05)
    start = time.perf_counter()
    await cache.get(name)
    seconds = time.perf_counter() - start
    ended.set()
    await ticking
    return seconds, late


def main() -> None:
    """Prints a row for each tokenizer; with `--one NAME` the numbers of one."""
    if sys.argv[1:2] == ["--one"]:
        seconds, late = uvloop.run(measure(sys.argv[2]))
        print(f"{seconds:.2f} | {late:.2f}")
        return
    names = sys.argv[1:] or [TINY, *sorted(str(path.parent) for path in FOLDER.glob("*/tokenizer.json"))]
    print("| tokenizer | loaded after, s | the loop stood still, s at most |\n|---|---|---|")
    for name in names:
        one = [sys.executable, "-m", "benchmarks.tokenizer_load", "--one", name]
        ran = subprocess.run(one, capture_output=True, text=True, check=False)
        print(f"| {Path(name).name} | {ran.stdout.strip() or 'cannot be loaded |'} |", flush=True)


if __name__ == "__main__":
    main()
