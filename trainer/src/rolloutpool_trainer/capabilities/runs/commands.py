"""Runs from the command line: `announce`, `pause`, `resume`, and `run`, which shows where one stands."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from rolloutpool_trainer.cli import completion, options

if TYPE_CHECKING:
    from rolloutpool_common.capabilities.runs.wire import RunState
    from rolloutpool_trainer.client.sync import RolloutClient

Run = Annotated[str, typer.Argument(help="The run that batches were submitted with.", autocompletion=completion.runs)]


def run(
    run: Run, url: options.Url = options.DEFAULT_URL, api_key: options.ApiKey = None, as_json: options.Json = False
) -> None:
    """Show the version of a run's weights, and whether it is paused."""
    _show(url, api_key, as_json, lambda client: client.run(run))


def announce(
    run: Run,
    version: Annotated[str, typer.Argument(help="Of the newest weights: a decimal integer.")],
    rollback: Annotated[bool, typer.Option("--rollback", help="It may be lower than the one before.")] = False,
    url: options.Url = options.DEFAULT_URL,
    api_key: options.ApiKey = None,
    as_json: options.Json = False,
) -> None:
    """Announce the version of a run's newest weights."""
    _show(url, api_key, as_json, lambda client: client.announce(run, version, rollback=rollback))


def pause(
    run: Run, url: options.Url = options.DEFAULT_URL, api_key: options.ApiKey = None, as_json: options.Json = False
) -> None:
    """Send no further model call of a run; those in flight go on."""
    _show(url, api_key, as_json, lambda client: client.pause(run))


def resume(
    run: Run, url: options.Url = options.DEFAULT_URL, api_key: options.ApiKey = None, as_json: options.Json = False
) -> None:
    """Let a paused run go on."""
    _show(url, api_key, as_json, lambda client: client.resume(run))


def _show(url: str, api_key: str | None, as_json: bool, ask: "Callable[[RolloutClient], RunState]") -> None:
    from rolloutpool_trainer.cli import console

    with console.client(url, api_key) as client:
        state = ask(client)
    if as_json:
        console.document(state)
        return
    reported = "none" if state.reported_version is None else f"none; rollouts report {state.reported_version}"
    version = reported if state.policy_version is None else str(state.policy_version)
    paused = "no"
    if state.paused_at is not None:
        left = "" if state.pause_left_s is None else f"; its batches are cancelled in {state.pause_left_s:,.0f} s"
        paused = f"since {state.paused_at:%Y-%m-%d %H:%M:%S} UTC{left}"
    console.out.print(console.grid({"run": state.run, "version": version, "paused": paused}))
