"""Ids that a shell completes: those of the caller's newest batches, their rollouts and runs, and dead rollouts.

A pool that does not answer within a second, or refuses, completes nothing. Nothing is printed, because a shell would
show it as a candidate.
"""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

import typer

if TYPE_CHECKING:
    from rolloutpool_trainer.client.calls import Call

T = TypeVar("T")
DEFAULT_URL = "http://127.0.0.1:9000"
"""Where commands look for a pool that nothing names."""
Candidates = Iterator[tuple[str, str]]
"""Pairs of a candidate and what it is."""

SECONDS = 1.0
MOST = 50
"""Batches, or rollouts of one batch, that are offered."""
_ROLLOUT = re.compile(r"(b[0-9a-f]{32})-\d*")


def batch_ids(context: typer.Context, incomplete: str) -> Candidates:
    """Offers the newest batches."""
    from rolloutpool_trainer.client import views

    call = views.batch_list(None, MOST, views.WantedBatches())
    for page in _ask(context, lambda: call):
        for batch in page.batches:
            if batch.batch_id.startswith(incomplete):
                yield batch.batch_id, f"{batch.state}, {batch.total} rollouts, {int(batch.age_s)} s ago"


def ids(context: typer.Context, incomplete: str) -> Candidates:
    """Offers the newest batches, and after the `-` of a uid the rollouts of that batch."""
    from rolloutpool_trainer.client import views

    match = _ROLLOUT.fullmatch(incomplete)
    if match is None:
        yield from batch_ids(context, incomplete)
        return
    fields = ["uid", "status", "rollout_id"]
    for page in _ask(context, lambda: views.rows(match[1], None, fields=fields, where=(), sort="index")):
        rows = zip(*(page.columns[name] for name in fields), strict=True)
        offered = [row for row in rows if row[0].startswith(incomplete)]
        yield from ((uid, f"{status}, {name}") for uid, status, name in offered[:MOST])


def runs(context: typer.Context, incomplete: str) -> Candidates:
    """Offers the runs of the newest batches."""
    from rolloutpool_trainer.client import views

    call = views.batch_list(None, MOST, views.WantedBatches())
    for page in _ask(context, lambda: call):
        # The newest first, each once.
        names = dict.fromkeys(batch.run for batch in page.batches if batch.run)
        yield from ((name, "run") for name in names if name.startswith(incomplete))


def dead_uids(context: typer.Context, incomplete: str) -> Candidates:
    """Offers the rollouts that killed their workers."""
    from rolloutpool_trainer.client import calls

    for letters in _ask(context, calls.dead_letters):
        yield from ((uid, "dead") for uid in letters.rollouts[:MOST] if uid.startswith(incomplete))


def worker_logs(context: typer.Context, incomplete: str) -> Candidates:
    """Offers the log files of the local pool."""
    from rolloutpool_trainer.local.state import default_state

    state = context.params.get("state") or default_state()
    with suppress(OSError):
        for file in sorted((state / "logs").glob("*.log")):
            if file.stem.startswith(incomplete):
                yield file.stem, str(file)


def _ask(context: typer.Context, make: "Callable[[], Call[T]]") -> "Iterator[T]":
    """Yields the pool's answer; nothing if there is none."""
    # A shell gives the options that were typed so far.
    url = context.params.get("url") or os.environ.get("ROLLOUTPOOL_URL") or DEFAULT_URL
    key = context.params.get("api_key") or os.environ.get("ROLLOUTPOOL_API_KEY")
    # Whatever goes wrong (no pool, no right, an address that is none), a shell must go on.
    with suppress(Exception):
        import httpx

        from rolloutpool_trainer.client.transport import connection_settings

        call = make()
        with httpx.Client(**connection_settings(str(url).rstrip("/"), key)) as http:
            answer = http.request(call.method, call.path, params=call.params or None, timeout=SECONDS)
        yield call.result(answer)
