"""`rolloutpool door`, `rolloutpool runner`, `rolloutpool agent`."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from rolloutpool_trainer.cli import options
from rolloutpool_trainer.cli.actors import JsonLogs, become, log_format


def door(
    redis: options.Redis,
    port: Annotated[int, typer.Option(envvar="ROLLOUTPOOL_DOOR_PORT", help="TCP port; 0 picks a free one.")] = 9100,
    host: Annotated[str, typer.Option(envvar="ROLLOUTPOOL_DOOR_HOST", help="Address to listen on.")] = "127.0.0.1",
    as_json: JsonLogs = False,
) -> None:
    """Run a door alone, with an existing Redis: what programs call as their model."""
    settings = {"ROLLOUTPOOL_REDIS_URL": redis, "ROLLOUTPOOL_DOOR_PORT": str(port), "ROLLOUTPOOL_DOOR_HOST": host}
    become("rolloutpool_api.capabilities.harness", settings | log_format(as_json=as_json))


def runner(
    redis: options.Redis,
    slots: Annotated[int, typer.Option(envvar="ROLLOUTPOOL_RUNNER_SLOTS", min=1, help="Programs at once.")] = 4,
    process: Annotated[
        options.RunnerProcess, typer.Option(envvar="ROLLOUTPOOL_RUNNER_PROCESS", help="How programs run.")
    ] = options.RunnerProcess.BUBBLEWRAP,
    door: Annotated[
        str, typer.Option(envvar="ROLLOUTPOOL_DOOR_URL", help="Where programs find the door.")
    ] = "http://127.0.0.1:9100",
    secrets_file: Annotated[
        Path | None,
        typer.Option(envvar="ROLLOUTPOOL_SECRETS_FILE", help="The API's keys for secrets; `up` prints where they are."),
    ] = None,
    as_json: JsonLogs = False,
) -> None:
    """Run a runner alone, with an existing Redis: it starts the programs that lead rollouts."""
    settings = {
        "ROLLOUTPOOL_REDIS_URL": redis,
        "ROLLOUTPOOL_RUNNER_SLOTS": str(slots),
        "ROLLOUTPOOL_RUNNER_PROCESS": process,
        "ROLLOUTPOOL_DOOR_URL": door,
        **({} if secrets_file is None else {"ROLLOUTPOOL_SECRETS_FILE": str(secrets_file)}),
    }
    become("rolloutpool_worker.capabilities.harness", settings | log_format(as_json=as_json))


class AgentAction(StrEnum):
    """Says what `rolloutpool agent` does."""

    TRY = "try"


def agent(
    action: Annotated[AgentAction, typer.Argument(help="`try`: run one session against a scripted policy.")],
    program: Annotated[
        str, typer.Argument(help="A preset (claude-code, codex, opencode, mini-swe-agent), or a command.")
    ],
    prompt: Annotated[str, typer.Argument(help="What it is asked.")] = "Say hi.",
    as_json: options.Json = False,
) -> None:
    """Try an agent that calls its model itself, on this machine, with your rights and without a model."""
    from rolloutpool_trainer.capabilities.harness.trial import ProgramUnknown, harness_of, run_trial
    from rolloutpool_trainer.cli import console

    try:
        harness = harness_of(program)
    except ProgramUnknown as error:
        raise typer.BadParameter(error.message) from None
    result, printed = run_trial(harness, prompt, console.note)
    if result.failure is not None and printed:
        console.note(f"what it has printed ends with\n{printed}")
    if as_json:
        console.document(result)
    else:
        if result.failure is not None:
            console.line(f"FAIL {result.failure.category}: {result.failure.message}")
        elif result.harness is not None:
            console.line(f"ok: it called its model {result.harness.calls} times and came to its end")
        for line in result.harness.lines if result.harness else ():
            left = "".join(f", {tokens} left out ({why})" for why, tokens in line.left_out.items())
            parent = "" if line.parent is None else f" of line {line.parent}"
            console.line(f"line {line.line}: {line.kind}{parent}, {line.turns} turns; {line.why}")
            console.line(f"  {line.tokens} tokens sampled, {line.trained_tokens} trained{left}")
        for number, sample in enumerate(result.samples, 1):
            trained = sum(sample.response_mask)
            ids = f"prompt {len(sample.prompt_ids)}, response {len(sample.response_ids)}"
            console.line(f"sample {number}: {ids}, trained {trained}")
    if result.failure is not None:
        raise typer.Exit(1)
