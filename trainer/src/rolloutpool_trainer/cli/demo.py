"""`rolloutpool demo`: runs a whole pool, a scripted trainer and a batch on this machine, and checks every mask.

The trainer checks them: its own sessions know which tokens it sampled, and each result is compared with them, token by
token. The demo leaves nothing running, and nothing on disk.
"""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from rolloutpool_trainer.cli import options

if TYPE_CHECKING:
    from rolloutpool_common.rendering import ChatTokenizer
    from rolloutpool_trainer.cli.documents import DemoDocument
    from rolloutpool_trainer.client.results import FinishedRollout
    from rolloutpool_trainer.endpoint.app import CallbackApp
    from rolloutpool_trainer.endpoint.server import ServedCallback
    from rolloutpool_trainer.local.pool import LocalPool

TOKENIZER = "rolloutpool/tiny"
CALLBACK_PORTS = 4
PROMPT_TAIL = 48
"""Tokens of the prompt that are shown: the question. The schemas of the tools before it would fill the screen."""


def demo(
    rollouts: Annotated[int, typer.Option(min=1, max=10_000, help="How many to run.")] = 64,
    group_size: Annotated[int, typer.Option(min=1, max=1024, help="Rollouts per prompt.")] = 8,
    workers: Annotated[int, typer.Option(min=1, help="Worker processes.")] = 2,
    port: options.Port = 9000,
    flower_port: options.FlowerPort = 5555,
    callback_port: Annotated[
        int, typer.Option(min=1, max=65532, help="First of the scripted trainer's four ports.")
    ] = 8081,
    keep: Annotated[bool, typer.Option("--keep", help="Stay up until Ctrl-C.")] = False,
    as_json: options.Json = False,
) -> None:
    """Run calculator rollouts on a pool of their own, and check every mask."""
    from rolloutpool_common.process.stopping import stop_on_signals
    from rolloutpool_trainer.cli import console
    from rolloutpool_trainer.local.pool import LocalPool

    begun = time.perf_counter()
    pool = LocalPool(
        workers,
        _port(port, "API"),
        flower_port=_port(flower_port, "Flower"),
        tokenizers=[TOKENIZER],
        report=console.note,
    )
    faults = 0
    with stop_on_signals(pool.kill, lambda: console.note("stopping")), ThreadPoolExecutor(1) as background:
        # The trainer's libraries and its tokenizer take as long to load as the pool takes to start.
        loading = background.submit(_load)
        console.note(f"starting Redis, API, {workers} workers and Flower")
        with pool, _scripted_trainer(pool, loading, callback_port) as (app, callback):
            if keep:
                # Flower shows only what happens while it runs.
                pool.wait_flower()
            ports = ", ".join(map(str, callback.ports))
            console.note(f"scripted trainer on ports {ports}; submitting {rollouts} rollouts in groups of {group_size}")
            results, seconds = _rollouts(pool, callback, rollouts, group_size, begun, progress=not as_json)
            workers_shown = _by_worker(results, [child.worker_id or "" for child in pool.workers])
            run = _Run(results, seconds, workers_shown, _check(results, app))
            faults = run.check.faults
            _show(run, pool, loading.result(), keep=keep, as_json=as_json)
            if keep:
                console.note("running; Ctrl-C stops")
                pool.join()
    console.note("stopped; nothing is left running")
    if not keep:
        console.note("next: `make demo KEEP=1` (or --keep) stays up and shows this batch in a browser")
    if faults:
        raise typer.Exit(1)


def _port(wanted: int, what: str) -> int:
    """Returns the port if it is free, and else 0, by which a server takes any that is."""
    from rolloutpool_trainer.cli import console
    from rolloutpool_trainer.local.ports import is_free

    if is_free(wanted):
        return wanted
    console.note(f"port {wanted} is taken; the {what} takes another one")
    return 0


def _load() -> "ChatTokenizer":
    from rolloutpool_trainer.cli import tokenizers

    loaded = tokenizers.load(TOKENIZER)
    import rolloutpool_trainer.endpoint.server
    import rolloutpool_trainer.testing  # noqa: F401

    return loaded


@contextmanager
def _scripted_trainer(
    pool: "LocalPool", loading: "Future[ChatTokenizer]", first_port: int
) -> "Iterator[tuple[CallbackApp, ServedCallback]]":
    tokenizer = loading.result()
    from rolloutpool_trainer.endpoint.app import callback_app
    from rolloutpool_trainer.endpoint.server import serve_callback
    from rolloutpool_trainer.testing import ScriptedPolicy

    app = callback_app(ScriptedPolicy(tokenizer), tokenizer=tokenizer, tools=pool.url)
    ports = [_port(first_port + index, "scripted trainer") for index in range(CALLBACK_PORTS)]
    with serve_callback(app, ports) as callback:
        yield app, callback


def _rollouts(
    pool: "LocalPool", callback: "ServedCallback", rollouts: int, group_size: int, begun: float, *, progress: bool
) -> "tuple[list[FinishedRollout], float]":
    """Runs the batch; returns its results, and the seconds from submission to the last."""
    from rolloutpool_trainer.cli import console

    results: list[FinishedRollout] = []
    with pool.client() as client:
        submitted = time.perf_counter()
        batch = client.submit(
            _items(rollouts, group_size), defaults={"tokenizer_name": TOKENIZER}, trainer=callback.urls
        )
        for result in batch.results(progress=progress):
            if not results:
                console.note(f"first result {time.perf_counter() - begun:.1f} s after the start of this command")
            results.append(result)
    return results, time.perf_counter() - submitted


def _items(rollouts: int, group_size: int) -> list[dict[str, Any]]:
    """Makes one item per group; the last group takes what is left."""
    from rolloutpool_trainer.testing import calculator_prompts

    sizes = [min(group_size, rollouts - done) for done in range(0, rollouts, group_size)]
    return [
        {"rollout_id": f"demo-{index}", "n": size, "messages": [{"role": "user", "content": question}]}
        for index, (size, question) in enumerate(zip(sizes, calculator_prompts(len(sizes)), strict=True))
    ]


def _by_worker(results: Sequence["FinishedRollout"], workers: Sequence[str]) -> "dict[str, list[FinishedRollout]]":
    """Returns the results of each worker, also of one that had nothing to do."""
    # A worker that was started again has another id, and those before it have results too.
    names = [*workers, *sorted({result.worker or "" for result in results} - {*workers})]
    return {name: [result for result in results if (result.worker or "") == name] for name in names}


def _show(run: "_Run", pool: "LocalPool", tokenizer: "ChatTokenizer", *, keep: bool, as_json: bool) -> None:
    from rolloutpool_trainer.cli import console
    from rolloutpool_trainer.cli.overview import viewer_address

    if as_json:
        console.document(_document(run, viewer_address(pool.url) if keep else None))
        return
    _print_table(run.results, run.seconds, run.workers)
    _print_example(run.results, tokenizer)
    _print_check(run.check)
    _print_addresses(pool)
    if keep:
        batch = viewer_address(pool.url, run.results[0].batch_id)
        console.line(f"next: open {batch}, which shows the batch that has just run")


def _print_table(
    results: Sequence["FinishedRollout"], seconds: float, workers: "Mapping[str, Sequence[FinishedRollout]]"
) -> None:
    """Prints a row per worker, and one for all."""
    from rolloutpool_trainer.cli import console

    rows = [(str(number), *_totals(theirs, seconds)) for number, theirs in enumerate(workers.values(), 1)]
    rows.append(("all", *_totals(results, seconds)))
    columns = ("worker", "rollouts", "turns", "tokens trained", "tokens", "rollouts/s", "alignment")
    console.table(columns, rows)


def _totals(results: Sequence["FinishedRollout"], seconds: float) -> tuple[object, ...]:
    samples = [sample for result in results for sample in result.samples]
    ends = Counter(str(result.alignment or result.status) for result in results)
    return (
        len(results),
        sum(result.num_llm_calls for result in results),
        sum(sum(sample.response_mask) for sample in samples),
        sum(len(sample.prompt_ids) + len(sample.response_ids) for sample in samples),
        len(results) / seconds,
        ", ".join(f"{name} {count}" for name, count in sorted(ends.items())) or "-",
    )


def _print_example(results: Sequence["FinishedRollout"], tokenizer: "ChatTokenizer") -> None:
    """Prints the tokens of the rollout with the most turns."""
    from rolloutpool_trainer.cli import console
    from rolloutpool_trainer.viewer.runs import view_samples
    from rolloutpool_trainer.viewer.terminal import legend, token_view

    shown = max(results, key=lambda result: result.num_llm_calls)
    for view in view_samples(shown, tokenizer.decode)[:1]:
        console.line()
        console.line(f"rollout {shown.rollout_id}, {shown.num_llm_calls} turns", style="bold")
        console.out.print(legend(view))
        console.out.print(token_view(view, marks=False, prompt_tail=PROMPT_TAIL))


class _Check(NamedTuple):
    """Holds what the comparison with the trainer's own sessions has found."""

    unfinished: "list[FinishedRollout]"
    rollouts: int
    compared: int
    """Tokens."""
    mismatches: int

    @property
    def faults(self) -> int:
        """How many things were wrong."""
        return self.mismatches + len(self.unfinished)


class _Run(NamedTuple):
    """Holds what is shown of the batch."""

    results: "list[FinishedRollout]"
    seconds: float
    """From its submission to the last result."""
    workers: "Mapping[str, Sequence[FinishedRollout]]"
    """The results of each."""
    check: _Check


def _check(results: Sequence["FinishedRollout"], app: "CallbackApp") -> _Check:
    """Compares every result with the trainer's session."""
    from rolloutpool_common.outcomes import RolloutStatus
    from rolloutpool_trainer.endpoint.checks import check_masks

    checks = [check_masks(result, app.get_session(result.rollout_id).samples) for result in results if result.samples]
    return _Check(
        unfinished=[result for result in results if result.status is not RolloutStatus.COMPLETED],
        rollouts=len(checks),
        compared=sum(compared for compared, _ in checks),
        mismatches=sum(differing for _, differing in checks),
    )


def _print_check(check: _Check) -> None:
    from rolloutpool_trainer.cli import console

    for result in check.unfinished[:5]:
        reason = result.failure.message if result.failure else result.finish_reason
        console.line(f"{result.rollout_id} {result.status}: {reason}", style="red")
    console.line()
    console.line(
        f"checked by the trainer: {check.compared:,} tokens of {check.rollouts} rollouts (id, mask, log-probability), "
        f"{check.mismatches} mismatches",
        style="bold red" if check.mismatches else "bold green",
    )


def _document(run: _Run, viewer: str | None) -> "DemoDocument":
    from rolloutpool_trainer.cli.documents import DemoDocument, DemoWorker

    return DemoDocument(
        rollouts=len(run.results),
        completed=len(run.results) - len(run.check.unfinished),
        seconds=run.seconds,
        compared_tokens=run.check.compared,
        mismatches=run.check.mismatches,
        workers=[DemoWorker(worker=name, rollouts=len(theirs)) for name, theirs in run.workers.items()],
        viewer=viewer,
    )


def _print_addresses(pool: "LocalPool") -> None:
    from rolloutpool_trainer.cli import console
    from rolloutpool_trainer.cli.overview import viewer_address

    pool.wait_flower()
    flower = f"{pool.flower_url}  (user:password {pool.flower_auth})"
    console.line()
    console.pairs({"API docs": f"{pool.url}/docs", "Flower": flower, "viewer": viewer_address(pool.url)})
