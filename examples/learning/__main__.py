"""Runs arms and seeds one after the other, and leaves out what was run before.

    python -m examples.learning [--arms exact,ones] [--seeds 1,2,3] [--kill] [--publish docs/learning]

A run that ended with the same settings is not made again, so a call that was broken off goes on where it was.
"""

import argparse
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import Any

import torch
from examples.learning.arms import ARMS
from examples.learning.demonstrations import start
from examples.learning.grpo import ENDPOINTS, HOST, Settings, run
from examples.learning.kills import Kills
from examples.learning.plots import kills_table, table, write_pictures
from examples.learning.ports import refuse_taken_ports
from examples.learning.records import Run, final, published, read_runs, wanted
from examples.learning.transformer import Shape
from examples.learning.vocabulary import write_tokenizer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from rolloutpool_common.rendering import load_tokenizer
from rolloutpool_trainer import LocalPool, PortTaken

DEFAULT = Path("build") / "learning"
WORKERS = 2
START_SEED = 1
"""All runs begin with the same weights; a run's seed is that of its questions and of what is sampled."""
REPORTS = 5
"""How often a run says where it is, where the output is no terminal and so has no bar."""


def main() -> None:
    """Runs what is asked for."""
    options = _options()
    torch.set_num_threads(options.threads)
    out: Path = options.out
    write_tokenizer(out / "tokenizer")
    tokenizer = load_tokenizer(str((out / "tokenizer").resolve()))
    shape = Shape(tokenizer.vocab_size, width=options.width, layers=options.layers)
    settings = Settings(steps=options.steps, rate=options.rate)
    named = {**asdict(settings), **asdict(shape), "demonstrations": options.demonstrations, "kill": options.kill}
    records = [Run(arm, seed, named) for seed in options.seeds for arm in options.arms]
    todo = [record for record in records if wanted(record, out / "runs")]
    if todo:
        refuse_taken_ports(HOST, options.base_port, ENDPOINTS)
    console = Console(stderr=True)
    console.print(f"{len(todo)} of {len(records)} runs to make; each is kept in {out / 'runs'} when it has ended")
    with ExitStack() as stack, _says_taken_port():
        pool = None
        for record in todo:
            title = f"{record.arm}, seed {record.seed}"
            with _bar(console, f"{title}: demonstrations", options.demonstrations) as advance:
                model = start(
                    out / "starts",
                    tokenizer,
                    shape,
                    seed=START_SEED,
                    steps=options.demonstrations,
                    advance=advance,
                )
            if pool is None:
                pool = stack.enter_context(LocalPool(workers=WORKERS, flower=False, tokenizers=[tokenizer.name]))
            with _bar(console, title, settings.steps) as advance:
                run(
                    record,
                    ARMS[record.arm],
                    model,
                    tokenizer,
                    pool,
                    settings,
                    base_port=options.base_port,
                    advance=advance,
                    kills=Kills(pool, settings.steps) if options.kill else None,
                )
            record.write(out / "runs")
            totals = record.totals
            console.print(
                f"{title}: solved {record.steps['solved'][0]:.2f} -> {final(record):.2f} in {totals['seconds']:.0f} s; "
                f"{totals['compared']:,.0f} of {totals['sampled']:,.0f} log-probabilities were compared, "
                f"and agree within {totals['difference']:.1e}"
            )
    found = [one for one in read_runs(out / "runs") if {**one.settings, "kill": False} == {**named, "kill": False}]
    print(table(found), kills_table(found), sep="\n", end="")
    target = options.publish or out
    if options.publish:
        (target / "runs.json").write_text(published(found))
    for picture in write_pictures(found, target):
        console.print(f"written: {picture}")


@contextmanager
def _says_taken_port() -> Iterator[None]:
    """Ends with the message alone, if another program took a port since all were tried."""
    try:
        yield
    except PortTaken as error:
        raise SystemExit(f"{error}: --base-port") from error


@contextmanager
def _bar(console: Console, title: str, total: int) -> Iterator[Any]:
    if not console.is_terminal:
        done = count(1)

        def tell(note: str = "") -> None:
            if (step := next(done)) % max(total // REPORTS, 1) == 0:
                console.print(f"{title}: {step} of {total} {note}")

        yield tell
        return
    columns = (TextColumn(title), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[note]}"))
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console) as bar:
        task = bar.add_task(title, total=total, note="")
        yield lambda note="": bar.update(task, advance=1, note=note)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m examples.learning", description=__doc__.partition("\n")[0])
    parser.add_argument("--arms", type=_arms, default=["exact"], help=f"all, or of {', '.join(ARMS)}; commas between")
    parser.add_argument("--seeds", type=lambda text: [int(part) for part in text.split(",")], default=[1])
    parser.add_argument("--steps", type=int, default=Settings.steps, help="updates of a run")
    parser.add_argument("--rate", type=float, default=Settings.rate, help="of the updates")
    parser.add_argument("--demonstrations", type=int, default=500, help="updates of the supervised start")
    parser.add_argument("--width", type=int, default=Shape.width)
    parser.add_argument("--layers", type=int, default=Shape.layers)
    parser.add_argument("--kill", action="store_true", help="kill workers and Redis on the way")
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    parser.add_argument("--base-port", type=int, default=8081, help="the trainer listens from here on")
    parser.add_argument("--out", type=Path, default=DEFAULT, help="keeps tokenizer, starts and runs")
    parser.add_argument("--publish", type=Path, help="folder for pictures and runs.json, instead of the one above")
    return parser.parse_args()


def _arms(text: str) -> list[str]:
    names = list(ARMS) if text == "all" else text.split(",")
    if unknown := set(names) - set(ARMS):
        raise argparse.ArgumentTypeError(f"there is no {', '.join(sorted(unknown))}; there are {', '.join(ARMS)}")
    return names


if __name__ == "__main__":
    main()
