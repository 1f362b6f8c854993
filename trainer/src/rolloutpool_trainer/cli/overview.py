"""Says what is in a pool: `batches`, and `open`, which shows all of it in a browser."""

from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer

from rolloutpool_trainer.cli import completion, options

if TYPE_CHECKING:
    from rolloutpool_common.protocol.batch_list import BatchSummary


def batches(
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="At most so many.")] = 20,
    state: Annotated[str | None, typer.Option(help="running or complete.")] = None,
    run: Annotated[str | None, typer.Option(help="Only those of this run.", autocompletion=completion.runs)] = None,
    label: Annotated[list[str] | None, typer.Option(help="name=value; may be repeated.")] = None,
    v1: Annotated[bool, typer.Option("--v1", help="Protocol v1's rollouts, each a batch of one.")] = False,
    owner: Annotated[str | None, typer.Option(help="Whose; another key's take the scope admin.")] = None,
    url: options.Url = options.DEFAULT_URL,
    api_key: options.ApiKey = None,
    as_json: options.Json = False,
) -> None:
    """List your batches, the newest first."""
    from rolloutpool_trainer.cli import console
    from rolloutpool_trainer.cli.documents import BatchesDocument

    labels = dict(options.name_and_value(text, "--label") for text in label or ())
    with console.client(url, api_key) as client:
        found = client.batches(limit=limit, state=state, run=run, labels=labels, v1=v1, owner=owner)
    if as_json:
        console.document(BatchesDocument(batches=found))
    elif found:
        columns = ("batch", "state", "rollouts", "completed", "failed", "turns", "age", "run", "labels")
        console.table(columns, [_batch_row(batch) for batch in found], lines=False)
    else:
        console.line("none")


def _batch_row(batch: "BatchSummary") -> tuple[object, ...]:
    from rolloutpool_common.outcomes import RolloutStatus

    return (
        batch.batch_id,
        "cancelled" if batch.cancelled else batch.state,
        batch.total,
        batch.counts.get(RolloutStatus.COMPLETED, 0),
        batch.counts.get(RolloutStatus.FAILED, 0),
        batch.turns,
        _age(batch.age_s),
        batch.run or "-",
        ", ".join(f"{name}={value}" for name, value in batch.labels.items()) or "-",
    )


def _age(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def open_viewer(
    identity: Annotated[
        str | None,
        typer.Argument(metavar="[ID]", help="A batch or a rollout's uid; none: all.", autocompletion=completion.ids),
    ] = None,
    show: Annotated[bool, typer.Option("--print", help="Only print the address.")] = False,
    url: options.Url = options.DEFAULT_URL,
    as_json: options.Json = False,
) -> None:
    """Open the viewer in a browser, and print its address."""
    from rolloutpool_trainer.cli import console
    from rolloutpool_trainer.cli.documents import OpenDocument

    address = viewer_address(url, identity)
    opened = False
    if not show:
        import webbrowser

        opened = webbrowser.open(address)
    if as_json:
        console.document(OpenDocument(address=address, opened=opened))
        return
    console.line(address)
    if not show and not opened:
        console.note("no browser could be started here; open the address where one is")


def viewer_address(url: str, identity: str | None = None) -> str:
    """Returns the viewer's address of a batch or a rollout; of the list of batches without one."""
    from rolloutpool_common.protocol.ids import is_batch_id

    base = f"{url.rstrip('/')}/ui"
    if identity is None:
        return base
    return f"{base}#/{'batch' if is_batch_id(identity) else 'rollout'}/{quote(identity, safe='')}"
