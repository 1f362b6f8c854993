"""Many random conversations on every tokenizer at hand: `make fuzz`.

A seeded generator and no hypothesis: nothing is shrunk or remembered, so that a million examples take minutes. An
example is named by `seed:number`; `--only NUMBER` plays it alone. Ends with code 1 at the first wrong mask.
"""

import argparse
import json
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor

from tests.oracle.conversations import Player
from tests.oracle.sets import entries, player
from tests.property.conversations import Tally, WrongMask, play

from rolloutpool_common.rendering import ChatTokenizer, load_tokenizer

BATCH = 200  # examples on one tokenizer before the next has its turn
SAID = 50  # batches between two signs of life


def tokenizers() -> list[tuple[ChatTokenizer, Player]]:
    """All that are laid out, loaded."""
    chosen = [entry for which in ("families", "golden") for entry in entries(which)]
    return [(load_tokenizer(str(entry.directory)), player(entry)) for entry in chosen]


def run(seed: int, first: int, step: int, examples: int, deadline: float | None) -> dict[str, Tally]:
    """Play every `step`th batch of examples from `first` on; what was covered, by tokenizer."""
    pairs = tokenizers()
    tallies = {one.referee.name: Tally() for _, one in pairs}
    for played, batch in enumerate(range(first, -(-examples // BATCH), step)):
        if played % SAID == 0 and played:
            print(f"{played * BATCH} played by job {first}, no wrong mask yet", file=sys.stderr, flush=True)
        tokenizer, one = pairs[batch % len(pairs)]
        for number in range(batch * BATCH, min((batch + 1) * BATCH, examples)):
            try:
                tallies[one.referee.name].add(play(tokenizer, one, f"{seed}:{number}"))
            except WrongMask as wrong:
                raise WrongMask(f"example {number} of seed {seed}: {wrong}") from None
        if deadline is not None and time.monotonic() > deadline:
            break
    return tallies


def main() -> None:
    """Parse the arguments, play, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, help="stop after so long, and say how many were played")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", type=int, help="play this example alone")
    options = parser.parse_args()
    if options.only is not None:
        pairs = tokenizers()
        tokenizer, one = pairs[options.only // BATCH % len(pairs)]
        print(json.dumps(vars(play(tokenizer, one, f"{options.seed}:{options.only}"))))
        return
    started = time.monotonic()
    deadline = started + options.minutes * 60 if options.minutes else None
    totals: dict[str, Tally] = {}
    with ProcessPoolExecutor(options.jobs) as pool:
        jobs = [
            pool.submit(run, options.seed, job, options.jobs, options.examples, deadline) for job in range(options.jobs)
        ]
        try:
            for job in jobs:
                for name, tally in job.result().items():
                    totals.setdefault(name, Tally()).add(tally)
        except WrongMask as wrong:
            sys.exit(f"WRONG MASK: {wrong}")
    columns = [name for name in vars(Tally()) if name != "reasons"]
    print("  ".join(["tokenizer".ljust(30), *columns]))
    whole = Tally()
    for name, tally in totals.items():
        whole.add(tally)
        print("  ".join([name.ljust(30), *(f"{getattr(tally, c):>{len(c)}}" for c in columns)]))
    print("  ".join(["all".ljust(30), *(f"{getattr(whole, c):>{len(c)}}" for c in columns)]))
    print(f"refusals: {whole.reasons}")
    print(f"{whole.examples} examples, no wrong mask, {time.monotonic() - started:.0f} s, seed {options.seed}")


if __name__ == "__main__":
    main()
