"""`python -m tests.causes [--pictures DIR]` tries a pool as a new operator would, with a trainer that goes wrong.

1. It starts `rolloutpool up` with the default options, and a trainer on one port (`trainer`).
2. The trainer is down, slow, wrong in four ways, and right in turn. Each time it submits a batch with
   `rolloutpool submit`.
3. From then on it looks at four places (`course`): the viewer's pages of the pool and of the batch in Chromium (the
   second one from the list of batches by clicks), what `rolloutpool status` prints, and `/metrics`. Each must name the
   cause within `LIMIT_SECONDS` (`cause`).
4. It prints how many seconds each place took. Exit code 1 when one did not name the cause in time.

With a folder it takes the pictures of docs/operations.md. Needs Chromium (Debian: `apt-get install chromium`).
"""

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright
from tests.causes.cause import CAUSES
from tests.causes.course import PLACES, Course
from tests.causes.operated_pool import operated_pool
from tests.causes.trainer import Manner


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.causes")
    parser.add_argument("--pictures", type=Path, metavar="DIR", help="where pictures go")
    arguments = parser.parse_args()
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        print("this needs Chromium. On Debian: apt-get install chromium", file=sys.stderr)
        return 1
    if arguments.pictures is not None:
        arguments.pictures.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="rolloutpool-causes-") as folder,
        operated_pool(Path(folder)) as pool,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        found = Course(pool, browser, Path(folder), arguments.pictures).run()
        browser.close()
    print(f"| the trainer is | {' | '.join(f'{place}, s' for place in PLACES)} |")
    print("|---|---|---|---|---|")
    for manner, seconds in found.items():
        print(f"| {manner} | {' | '.join(_shown(seconds, place, manner) for place in PLACES)} |")
    return 0 if all(place in seconds for manner, seconds in found.items() for place in _asked(manner)) else 1


def _asked(manner: Manner) -> list[str]:
    (cause,) = [one for one in CAUSES if one.manner is manner]
    return [place for place in PLACES if place != "pool" or cause.pool is not None]


def _shown(seconds: dict[str, float], place: str, manner: Manner) -> str:
    if place not in _asked(manner):
        return "nothing to say"
    return f"{seconds[place]:.0f}" if place in seconds else "**not found**"


if __name__ == "__main__":
    sys.exit(main())
