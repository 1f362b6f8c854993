"""`rolloutpool replay`: a finished rollout again, from its record."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rolloutpool_trainer.cli import completion, options

if TYPE_CHECKING:
    from rolloutpool_common.protocol.replay import ReplayReport


def replay(
    source: Annotated[
        str,
        typer.Argument(
            metavar="ROLLOUT|FILE",
            help="A rollout of the pool (uid or own id), or a file of results.",
            autocompletion=completion.ids,
        ),
    ],
    tokenizer: Annotated[
        str | None, typer.Option(help="In the place of the recorded one: hub name or directory on this machine.")
    ] = None,
    url: options.Url = options.DEFAULT_URL,
    api_key: options.ApiKey = None,
    as_json: options.Json = False,
) -> None:
    """Run finished rollouts again from their records, without a model and without a tool, and compare.

    Exit code 1 where anything differs, or cannot be run again.
    """
    from rolloutpool_trainer.cli import console
    from rolloutpool_trainer.cli.actors import check_installed
    from rolloutpool_trainer.cli.documents import ReplayDocument

    check_installed("rolloutpool_worker")
    path = Path(source)
    results = _of_file(path) if path.is_file() else _of_pool(source, url, api_key)
    reports = _replayed(results, tokenizer)
    same = bool(reports) and all(report.same for report in reports)
    if as_json:
        console.document(ReplayDocument(same=same, reports=reports))
    else:
        for report in reports:
            _show(report)
    if not same:
        raise typer.Exit(1)


def _of_pool(rollout_id: str, url: str, api_key: str | None) -> list[Any]:
    from rolloutpool_trainer.cli import console
    from rolloutpool_trainer.errors import TrainerError

    with console.client(url, api_key) as client:
        view = client.get_rollout(rollout_id)
    if view.result is None:
        raise TrainerError(f"rollout {view.uid} is {view.status}; it can be run again once it has ended")
    return [view.result]


def _of_file(path: Path) -> list[Any]:
    """Reads the results of a file: one a line, or one document (a result, a list, a page, the state of a rollout)."""
    from rolloutpool_trainer.errors import UnreadableResults

    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UnreadableResults(f"cannot read {path}: {error}") from None
    try:
        found = list(_results_in(json.loads(text)))
    except json.JSONDecodeError:
        found = [result for line in text.splitlines() if line.strip() for result in _of_line(line)]
    if not found:
        raise UnreadableResults(f"{path} holds no results")
    return found


def _of_line(line: str) -> Iterator[Any]:
    try:
        yield from _results_in(json.loads(line))
    except json.JSONDecodeError:
        # A line that a crash has cut; its report says that it is no result.
        yield None


def _results_in(document: Any) -> Iterator[Any]:
    match document:
        case {"items": [*items]}:
            for item in items:
                yield from _results_in(item)
        case {"result": result} if "samples" not in document:
            yield result
        case [*results]:
            for result in results:
                yield from _results_in(result)
        case _:
            yield document


def _replayed(results: list[Any], tokenizer: str | None) -> "list[ReplayReport]":
    """Runs the replays in a process of the worker's package, which this package does not import."""
    from rolloutpool_common.protocol.replay import ReplayReport
    from rolloutpool_trainer.errors import TrainerError

    command = [sys.executable, "-m", "rolloutpool_worker.replay", *([] if tokenizer is None else [tokenizer])]
    lines = "".join(f"{json.dumps(result)}\n" for result in results)
    ended = subprocess.run(command, input=lines, stdout=subprocess.PIPE, text=True, check=False)
    reports = [ReplayReport.model_validate_json(line) for line in ended.stdout.splitlines()]
    if ended.returncode or len(reports) != len(results):
        raise TrainerError(f"the replay ended after {len(reports)} of {len(results)} results (exit {ended.returncode})")
    return reports


def _show(report: "ReplayReport") -> None:
    from rolloutpool_trainer.cli import console

    name = report.uid or "a line"
    if report.lacks is not None:
        console.line(f"{name}: cannot be run again: {report.lacks}")
    elif report.same:
        console.line(f"{name}: the same: {report.turns} turns, {report.ids:,} ids")
    else:
        first = report.differences[0]
        places = ("turn", first.turn), ("sample", first.sample), ("position", first.position)
        where = ", ".join(f"{word} {value}" for word, value in places if value is not None)
        more = len(report.differences) - 1
        console.line(
            f"{name}: differs{' at ' + where if where else ''}: {first.what}: recorded {first.recorded}, "
            f"now {first.replayed}" + (f" (and {more} more)" if more else "")
        )
    for note in report.notes:
        console.note(f"{name}: {note}")
