"""Commands for operators: who works, whether a pool reaches its trainers, and what it has given up."""

from typing import Annotated

import typer

from rolloutpool_trainer.cli import completion, options
from rolloutpool_trainer.composition import LETTERS

Uid = Annotated[str, typer.Argument(help="Uid of a dead rollout.", autocompletion=completion.dead_uids)]


def workers(
    url: options.Url = options.DEFAULT_URL, api_key: options.ApiKey = None, as_json: options.Json = False
) -> None:
    """List all worker processes, with what each runs now."""
    from rolloutpool_trainer.cli import console
    from rolloutpool_trainer.cli.documents import WorkersDocument
    from rolloutpool_trainer.client import calls

    with console.client(url, api_key) as client:
        listed = client.ask(calls.workers())
    found = listed.workers
    if as_json:
        console.document(WorkersDocument(workers=found, unreadable=listed.unreadable))
        return
    rows = [
        (
            worker.worker_id,
            "draining" if worker.draining else "alive" if worker.alive else "silent",
            worker.role,
            worker.pid,
            worker.running,
            worker.slots,
            ", ".join(sorted(worker.tokenizers)) or "-",
        )
        for worker in found
    ]
    if rows:
        console.table(("worker", "state", "role", "pid", "running", "slots", "tokenizers"), rows, lines=False)
    elif not listed.unreadable:
        console.line("none")
    for one in listed.unreadable:
        console.line(f"{one.worker_id} cannot be read (last beat {one.last_beat_age_s:.0f} s ago): {one.why}")


def preflight(
    server_urls: Annotated[list[str], typer.Argument(help="Callback endpoints, e.g. http://trainer:8081")],
    url: options.Url = options.DEFAULT_URL,
    api_key: options.ApiKey = None,
    as_json: options.Json = False,
) -> None:
    """Ask a worker whether it reaches these callback ports."""
    from rolloutpool_trainer.cli import console
    from rolloutpool_trainer.cli.documents import PreflightDocument

    with console.client(url, api_key) as client:
        found = client.preflight(server_urls)
    ok = all(endpoint.ok for endpoint in found)
    if as_json:
        console.document(PreflightDocument(ok=ok, endpoints=found))
    else:
        for endpoint in found:
            console.line(f"{'ok  ' if endpoint.ok else 'FAIL'} {endpoint.server_url}  {endpoint.detail}")
    if not ok:
        raise typer.Exit(1)


def dead_letters(
    url: options.Url = options.DEFAULT_URL, api_key: options.ApiKey = None, as_json: options.Json = False
) -> None:
    """List what was given up: rollouts that killed their workers, pushes."""
    from rolloutpool_trainer.cli import console

    with console.client(url, api_key) as client:
        letters = client.dead_letters()
    if as_json:
        console.document(letters)
        return
    found = [f"{word} {uid}" for word, field in {"rollout": "rollouts", **LETTERS}.items() for uid in letters[field]]
    for line in found or ["none"]:
        console.line(line)


def requeue(
    uid: Uid,
    url: options.Url = options.DEFAULT_URL,
    api_key: options.ApiKey = None,
    as_json: options.Json = False,
) -> None:
    """Run a dead rollout once more, as a batch of its own."""
    from rolloutpool_trainer.cli import console
    from rolloutpool_trainer.cli.documents import BatchDocument

    with console.client(url, api_key) as client:
        batch_id = client.requeue(uid).batch_id
    if as_json:
        console.document(BatchDocument(batch_id=batch_id))
    else:
        console.line(f"batch {batch_id}")
