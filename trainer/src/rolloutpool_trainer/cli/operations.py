"""Commands for operators: who works, whether a pool reaches its trainers, and what it has given up."""

from typing import Annotated

import typer

from rolloutpool_trainer.cli import options

__all__ = ["dead_letters", "preflight", "requeue", "workers"]

Uid = Annotated[str, typer.Argument(help="Uid of a dead rollout.")]


def workers(url: options.Url = options.DEFAULT_URL, api_key: options.ApiKey = None) -> None:
    """List all worker processes, with what each runs now."""
    from rolloutpool_trainer.cli import console

    with console.client(url, api_key) as client:
        found = client.workers()
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
    else:
        console.line("none")


def preflight(
    server_urls: Annotated[list[str], typer.Argument(help="Callback endpoints, e.g. http://trainer:8081")],
    url: options.Url = options.DEFAULT_URL,
    api_key: options.ApiKey = None,
) -> None:
    """Ask a worker whether it reaches these callback ports."""
    from rolloutpool_trainer.cli import console

    with console.client(url, api_key) as client:
        found = client.preflight(server_urls)
    for endpoint in found:
        console.line(f"{'ok  ' if endpoint.ok else 'FAIL'} {endpoint.server_url}  {endpoint.detail}")
    if not all(endpoint.ok for endpoint in found):
        raise typer.Exit(1)


def dead_letters(url: options.Url = options.DEFAULT_URL, api_key: options.ApiKey = None) -> None:
    """List rollouts that killed their workers, and pushes that were given up."""
    from rolloutpool_trainer.cli import console

    with console.client(url, api_key) as client:
        letters = client.dead_letters()
    for uid in letters.rollouts:
        console.line(f"rollout {uid}")
    for uid in letters.pushes:
        console.line(f"push {uid}")
    if not (letters.rollouts or letters.pushes):
        console.line("none")


def requeue(uid: Uid, url: options.Url = options.DEFAULT_URL, api_key: options.ApiKey = None) -> None:
    """Run a dead rollout once more, as a batch of its own."""
    from rolloutpool_trainer.cli import console

    with console.client(url, api_key) as client:
        console.line(f"batch {client.requeue(uid).batch_id}")
