"""What an owner has in the pool, and its end: `purge-owner`.

1. All batches of the owner are listed, protocol v1's too. Those that run are cancelled.
2. Each is purged once it has ended; a turn that a worker has in hand ends first, so this takes some seconds.
3. The lists are read again. What came in the meantime is counted and left: the owner's keys still work, and nothing
   that is deleted now would stay deleted.
"""

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from rolloutpool_trainer.cli import options

if TYPE_CHECKING:
    from rolloutpool_common.protocol.batch_list import BatchSummary
    from rolloutpool_trainer.client.sync import RolloutClient

MOST = 1_000_000
"""Batches of one owner that are read; a pool's Redis holds fewer."""


def purge_owner(
    owner: Annotated[str, typer.Argument(help="The name of a key; `public` is whoever has none.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    seconds: Annotated[float, typer.Option(min=0, help="How long to wait for what is cancelled to end.")] = 120,
    url: options.Url = options.DEFAULT_URL,
    api_key: options.ApiKey = None,
    as_json: options.Json = False,
) -> None:
    """Cancel and delete everything of one owner. Takes a key with the scope admin. Take the owner's keys away first."""
    from rolloutpool_trainer.cli import console
    from rolloutpool_trainer.cli.documents import PurgeOwnerDocument

    with console.client(url, api_key) as client:
        found = _batches(client, owner)
        rollouts = sum(summary.total for summary in found)
        if found and not yes:
            asked = f"Cancel and delete {len(found):,} batches of {owner!r} with {rollouts:,} rollouts?"
            typer.confirm(asked, abort=True, err=True)
        left = _purge(client, found, time.monotonic() + seconds)
        gone = {summary.batch_id for summary in found}
        new = [summary.batch_id for summary in _batches(client, owner) if summary.batch_id not in gone]
    if as_json:
        console.document(PurgeOwnerDocument(owner=owner, purged=len(found) - len(left), left=left, new=new))
    else:
        console.line(f"purged {len(found) - len(left):,} batches of {owner}")
    if left:
        console.note(f"{len(left)} have not ended within {seconds:g} s: {', '.join(left[:3])}; run this again")
    if new:
        console.note(f"{len(new)} came meanwhile: take the keys of {owner!r} away, then run this again")
    if left or new:
        raise typer.Exit(1)


def _batches(client: "RolloutClient", owner: str) -> "list[BatchSummary]":
    listed = (one for v1 in (False, True) for one in client.batches(limit=MOST, owner=owner, v1=v1))
    # An API of 0.2 lists everybody's batches for an empty name.
    return [one for one in listed if one.owner == owner]


def _purge(client: "RolloutClient", found: "list[BatchSummary]", until: float) -> list[str]:
    """Cancels what runs, purges what has ended, and returns the batches that have not ended in time."""
    from rolloutpool_common.protocol.batch import BatchState
    from rolloutpool_trainer.errors import NotFound

    for summary in found:
        # It may be gone: its retention was over meanwhile, or another command like this one was faster.
        with suppress(NotFound):
            if summary.state is BatchState.RUNNING:
                client.batch(summary.batch_id).cancel()
    left = []
    for summary in found:
        batch = client.batch(summary.batch_id)
        try:
            with suppress(NotFound):
                if summary.state is BatchState.RUNNING:
                    batch.wait(timeout=max(until - time.monotonic(), 0.0))
                batch.purge()
        except TimeoutError:
            left.append(summary.batch_id)
    return left
