"""Plays random conversations on many templates and counts what a renderer makes of them.

A conversation is named by its template and `seed:number`; `--template NAME --only NUMBER` plays it alone. Ends with
code 1 where anything is wrong.
"""

import argparse
import json
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path

from tests.oracle.match import Score, play
from tests.oracle.renderers import load
from tests.oracle.sets import SETS, Entry, entries, player

_COLUMNS = ("conversations", "exact", "refused_rightly", "refused", "wrong", "no_oracle")


def score(entry: Entry, renderer: str, seed: int, numbers: range) -> Score:
    """Plays these conversations on one template."""
    try:
        loaded = player(entry)
    except Exception as error:  # a foreign template may be none
        return Score(entry.name, failure=f"{type(error).__name__}: {error}"[:200])
    return play(loaded, entry.directory, load(renderer), (f"{seed}:{number}" for number in numbers))


def main() -> None:
    """Parse the arguments, play, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--templates", choices=(*SETS, "all"), default="all")
    parser.add_argument("--template", help="this template alone")
    parser.add_argument("--examples", type=int, default=20_000, help="conversations, over all templates")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="play the conversation of this number alone")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--renderer", default="today", help="`today`, or module:function")
    parser.add_argument("--json", type=Path, help="write everything, wrong cases included, to this file")
    options = parser.parse_args()
    chosen = [e for e in entries(options.templates) if options.template in (None, e.name)]
    if not chosen:
        sys.exit("No such template is laid out: make tokenizers, make templates")
    each = -(-options.examples // len(chosen))
    numbers = range(each) if options.only is None else range(options.only, options.only + 1)
    started = time.monotonic()
    with ProcessPoolExecutor(options.processes) as pool:
        jobs = [pool.submit(score, entry, options.renderer, options.seed, numbers) for entry in chosen]
        for job in as_completed(jobs):
            if options.json:
                done = [asdict(job.result()) for job in jobs if job.done()]
                options.json.write_text(json.dumps(done, indent=1), encoding="utf-8")
        scores = [job.result() for job in jobs]
    report(scores)
    print(f"{time.monotonic() - started:.0f} s, seed {options.seed}, renderer {options.renderer}")
    sys.exit(any(s.wrong or s.failure for s in scores))


def report(scores: list[Score]) -> None:
    """Print a row for each template, why some were refused or had no oracle, and the first wrong cases."""
    print("  ".join(["template".ljust(44), *_COLUMNS]))
    for one in scores:
        print(
            "  ".join([one.template[:44].ljust(44), *(f"{getattr(one, c):>{len(c)}}" for c in _COLUMNS)]), one.failure
        )
    print("  ".join(["all".ljust(44), *(f"{sum(getattr(s, c) for s in scores):>{len(c)}}" for c in _COLUMNS)]))
    for one in scores:
        for reason, count in [*_most(one.reasons, 3), *_most(one.unknown, 2)]:
            print(f"{one.template}: {count} x {reason}")
    for one in scores:
        for wrong in one.cases[:1]:
            print(f"WRONG {wrong.template} {wrong.seed}, round {wrong.round}, {wrong.ending}")
            print(f"  expected {wrong.expected_text!r}\n  given    {wrong.given_text!r}")


def _most(counts: dict[str, int], number: int) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda pair: -pair[1])[:number]


if __name__ == "__main__":
    main()
