"""Batches from the command line: `submit`, `status`, `watch`, `results`, `purge`."""

import json
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rolloutpool_trainer.cli import options
from rolloutpool_trainer.composition import COUNTS

if TYPE_CHECKING:
    from rich.text import Text

    from rolloutpool_common.protocol.batch import BatchStatus
    from rolloutpool_common.protocol.waiting import Waiting
    from rolloutpool_trainer.cli.documents import SubmitDocument
    from rolloutpool_trainer.client.sync_batch import Batch

SHOWN_REASONS = 5
"""How many reasons why rollouts did not complete are shown, the commonest first."""


def submit(
    file: Annotated[Path, typer.Argument(help="One rollout per line as JSON; - reads stdin.", allow_dash=True)],
    url: options.Url = options.DEFAULT_URL,
    api_key: options.ApiKey = None,
    tokenizer: Annotated[
        str | None, typer.Option(help="Tokenizer of all rollouts: hub name, or directory on the workers.")
    ] = None,
    trainer: Annotated[list[str] | None, typer.Option(help="Callback URL; may be repeated.")] = None,
    max_turns: Annotated[int | None, typer.Option(help="Most turns of each rollout.")] = None,
    max_tokens_total: Annotated[int | None, typer.Option(help="Most sampled tokens of each rollout.")] = None,
    deadline: Annotated[
        float | None, typer.Option(help="Seconds until each rollout expires, queueing included.")
    ] = None,
    defaults: Annotated[str, typer.Option(help="Other options of all rollouts, as a JSON object.")] = "{}",
    priority: Annotated[str, typer.Option(help="high, default or low.")] = "default",
    label: Annotated[list[str] | None, typer.Option(help="name=value; may be repeated.")] = None,
    run: Annotated[str | None, typer.Option(help="The training run; runs share the workers by weight.")] = None,
    weight: Annotated[int, typer.Option(help="This run's share; 1 to 100.")] = 1,
    group: Annotated[
        str | None, typer.Option(help="When a group may be taken early: min_usable=6,size=8,late=cancel.")
    ] = None,
    max_staleness: Annotated[
        int | None, typer.Option(help="By how many versions the run may be ahead of a rollout's oldest; with --run.")
    ] = None,
    on_stale: Annotated[str | None, typer.Option(help="What happens to older ones: drop, finish or restart.")] = None,
    lease: Annotated[float | None, typer.Option(help="Cancel it when nobody has read it for so many seconds.")] = None,
    idempotency_key: Annotated[str | None, typer.Option(help="The same key never submits twice.")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Show progress until all have ended.")] = False,
    as_json: options.Json = False,
) -> None:
    """Submit a batch and print its id."""
    from rolloutpool_trainer.cli import console

    shared = json_object(defaults, "--defaults")
    given = {
        "tokenizer_name": tokenizer,
        "max_turns": max_turns,
        "max_tokens_total": max_tokens_total,
        "deadline_seconds": deadline,
    }
    # An option of its own wins over the same field in --defaults.
    shared |= {name: value for name, value in given.items() if value is not None}
    with console.client(url, api_key) as client:
        batch = client.submit(
            list(_read(file)),
            defaults=shared,
            trainer=trainer,
            priority=priority,
            labels=dict(options.name_and_value(text, "--label") for text in label or ()),
            run=run,
            weight=weight,
            group=None if group is None else _group(group),
            max_staleness=max_staleness,
            on_stale=on_stale,
            lease_seconds=lease,
            idempotency_key=idempotency_key,
        )
        show_accepted(batch, wait=wait, as_json=as_json)


def show_accepted(batch: "Batch", *, wait: bool, as_json: bool) -> None:
    """Prints a batch that was accepted just now; with `wait`, follows it to its end."""
    from rolloutpool_trainer.cli import console
    from rolloutpool_trainer.cli.documents import SubmitDocument

    document = SubmitDocument(batch_id=batch.batch_id, rollouts=batch.accepted.rollouts if batch.accepted else [])
    if not as_json:
        console.line(batch.batch_id)
    if wait:
        _follow(batch, document, as_json=as_json)
    elif as_json:
        console.document(document)


def _follow(batch: "Batch", document: "SubmitDocument", *, as_json: bool) -> None:
    """Follows a batch to its end, and says how its rollouts ended; exits with 1 unless all have completed."""
    from rolloutpool_common.composition import said_of
    from rolloutpool_common.outcomes import RolloutStatus
    from rolloutpool_trainer.cli import console

    ended = completed = 0
    reasons: Counter[str] = Counter()
    for result in batch.results(progress=not as_json):
        ended += 1
        if result.status is RolloutStatus.COMPLETED:
            completed += 1
        else:
            said = result.failure.message if result.failure else next(iter(said_of(result).values()), result.status)
            reasons[said] += 1
    if as_json:
        known = {"ended": ended, "completed": completed, "reasons": dict(reasons.most_common())}
        console.document(document.model_copy(update=known))
    else:
        for reason, count in reasons.most_common(SHOWN_REASONS):
            console.note(f"{count} not completed: {reason}")
        console.note(f"{completed} of {ended} completed; rolloutpool results {batch.batch_id}")
    if completed < ended:
        raise typer.Exit(1)


def status(
    batch_id: options.BatchId,
    url: options.Url = options.DEFAULT_URL,
    api_key: options.ApiKey = None,
    as_json: options.Json = False,
) -> None:
    """Show where a batch stands."""
    from rolloutpool_trainer.cli import console
    from rolloutpool_trainer.cli.documents import StatusDocument

    with console.client(url, api_key) as client:
        batch = client.batch(batch_id)
        state = batch.status()
        reasons = _reasons(batch, state)
    if as_json:
        console.document(StatusDocument(**state.model_dump(), reasons=dict(reasons.most_common())))
    else:
        console.out.print(_status_table(state, reasons))


def watch(
    batch_id: options.BatchId,
    url: options.Url = options.DEFAULT_URL,
    api_key: options.ApiKey = None,
    as_json: options.Json = False,
) -> None:
    """Show where a batch stands until it has ended."""
    import time
    from contextlib import nullcontext

    from rich.live import Live

    from rolloutpool_common.protocol.batch import BatchState
    from rolloutpool_trainer.cli import console
    from rolloutpool_trainer.client.retry import status_delays

    # Elsewhere than on a terminal nothing can be drawn over; the end is printed.
    drawn = console.out.is_terminal and not as_json
    shown = Live(console=console.out, auto_refresh=False) if drawn else nullcontext()
    with console.client(url, api_key) as client, shown as live:
        batch = client.batch(batch_id)
        for delay in status_delays():
            state = batch.status()
            ended = state.state is BatchState.COMPLETE
            if live is not None:
                live.update(_status_table(state), refresh=True)
            elif as_json:
                console.document(state, one_line=True)
            elif ended:
                console.out.print(_status_table(state))
            if ended:
                return
            time.sleep(delay)


def results(
    batch_id: options.BatchId,
    cursor: Annotated[str, typer.Option(help="Go on after the result with this cursor.")] = "0",
    url: options.Url = options.DEFAULT_URL,
    api_key: options.ApiKey = None,
    as_json: options.Json = False,
) -> None:
    """Print each result as it ends, one JSON object a line, until all have ended."""
    from rolloutpool_trainer.cli import console

    with console.client(url, api_key) as client:
        for result in client.batch(batch_id).results(cursor):
            # With and without --json.
            console.document(result, one_line=True)


def purge(
    batch_id: options.BatchId,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    url: options.Url = options.DEFAULT_URL,
    api_key: options.ApiKey = None,
    as_json: options.Json = False,
) -> None:
    """Delete everything that is kept of an ended batch. Takes a key with the scope admin."""
    from rolloutpool_trainer.cli import console

    if not yes:
        typer.confirm(f"Delete all results of {batch_id}?", abort=True, err=True)
    with console.client(url, api_key) as client:
        purged = client.batch(batch_id).purge()
    if as_json:
        console.document(purged)
    else:
        console.line(f"purged {batch_id}")


def _read(file: Path) -> Iterator[dict[str, Any]]:
    try:
        text = (sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"cannot read {file}: {error}") from error
    # Not `splitlines`, which also splits at characters such as U+2028 that JSON allows inside a text.
    rows = [(number, row) for number, row in enumerate(text.split("\n"), 1) if row.strip()]
    if not rows:
        raise typer.BadParameter(f"{file} holds no rollouts; write one JSON object a line")
    for number, row in rows:
        yield json_object(row, f"{file}, line {number}")


def json_object(text: str, where: str) -> dict[str, Any]:
    """Reads a JSON object; raises `BadParameter`, which says where it stands."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"{where}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise typer.BadParameter(f"{where}: not a JSON object")
    return value


def _group(text: str) -> dict[str, Any]:
    """Reads a group policy; the pool itself checks names and values."""
    policy = dict(options.name_and_value(part, "--group") for part in text.split(","))
    return {name: int(value) if value.isascii() and value.isdigit() else value for name, value in policy.items()}


def _cancelled(state: "BatchStatus") -> str:
    if not state.cancelled:
        return ""
    why = {"lease": ": nobody has read it", "pause": ": its run was paused for too long"}
    return f", cancelled{why.get(state.cancel_cause or '', '')}"


def _waits_for(wait: "Waiting") -> str:
    # The others are things that the pool lacks.
    if wait.waits_for == "paused":
        return "paused"
    article = "an" if wait.waits_for == "environment" else "a"
    return f"waits for {wait.endpoint or f'{article} {wait.waits_for}'}"


def _commonest(reasons: Counter[str]) -> str:
    shown = [f"{reason} ({count:,} rollouts)" for reason, count in reasons.most_common(SHOWN_REASONS)]
    left = len(reasons) - len(shown)
    return "; ".join(shown + ([f"and {left:,} other reasons"] if left else []))


def _wait(wait: "Waiting") -> str:
    if wait.endpoint is None:
        return f"{wait.message} ({wait.rollouts:,} rollouts)"
    of = f"{wait.rollouts:,} rollout{'' if wait.rollouts == 1 else 's'}"
    # Of a call that has no answer yet, none has failed.
    if wait.next_try is None or not wait.tries:
        return f"{wait.message} ({of})"
    seconds = max((wait.next_try - datetime.now(UTC)).total_seconds(), 0.0)
    return f"{wait.message} ({of}; {wait.tries:,} tries of one, next in {seconds:.0f} s)"


def _reasons(batch: "Batch", state: "BatchStatus") -> Counter[str]:
    """Counts why rollouts failed, expired or were too old, by category; nothing is asked where none did."""
    from rolloutpool_common.outcomes import FinishReason, RolloutStatus

    ends = [end for end in (RolloutStatus.FAILED, RolloutStatus.EXPIRED) if state.counts.get(end)]
    if state.stale and state.counts.get(RolloutStatus.CANCELLED):
        ends.append(RolloutStatus.CANCELLED)
    if not ends:
        return Counter()
    rows = batch.table(["status", "finish_reason", "category", "message"], where=[f"status={','.join(ends)}"])
    # Messages of one cause may differ in turns and lengths, so rollouts are counted by category.
    messages: dict[str, Counter[str]] = {}
    columns = (rows[name] for name in ("status", "finish_reason", "category", "message"))
    for status, finish, category, message in zip(*columns, strict=True):
        stale = finish == FinishReason.STALE
        if status == RolloutStatus.CANCELLED and not stale:
            continue
        messages.setdefault(category or (finish if stale else status), Counter())[message or ""] += 1
    return Counter({_reason(name, said): said.total() for name, said in messages.items()})


def _reason(name: str, said: Counter[str]) -> str:
    """Names a category with its commonest message."""
    ((message, _),) = said.most_common(1)
    others = f" (and {len(said) - 1:,} other messages)" if len(said) > 1 else ""
    return (f"{name}: {message}" if message else name) + others


def _status_table(state: "BatchStatus", reasons: Counter[str] | None = None) -> "Text":
    from rolloutpool_trainer.cli import console

    def joined(counts: dict[Any, int]) -> str:
        return ", ".join(f"{name} {count:,}" for name, count in counts.items() if count) or "none"

    return console.grid(
        {
            "batch": state.batch_id,
            "state": f"{state.state}{_cancelled(state)}",
            "rollouts": f"{state.total:,}: {joined(state.counts)}",
            "progress": f"{state.progress:.1%}",
            "rate": f"{state.rates.rollouts_per_second:,.1f} rollouts/s, "
            f"{state.rates.sampled_tokens_per_second:,.0f} sampled tokens/s",
            "tokens": f"{state.sampled_tokens:,} sampled of {state.total_tokens:,}, in {state.turns:,} turns",
            "alignment": joined(state.alignment),
            "drift": joined(state.drift),
            "failures": joined(state.failures),
            **({"because": _commonest(reasons)} if reasons else {}),
            "warnings": joined(state.warnings),
            **({"tool errors": joined(state.tool_errors)} if state.tool_errors else {}),
            **({"stale": joined(state.stale)} if state.stale else {}),
            **{_waits_for(wait): _wait(wait) for wait in state.waiting},
            **{name: joined(counts) for name, field in COUNTS.items() if (counts := getattr(state, field))},
            "labels": ", ".join(f"{name}={value}" for name, value in state.labels.items()) or "none",
        }
    )
