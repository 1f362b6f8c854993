"""`rolloutpool regrade`."""

import json
from typing import Annotated

import typer

from rolloutpool_trainer.cli import options


def regrade(
    batch_id: options.BatchId,
    grader: Annotated[str, typer.Option(help="The grader, as `rolloutpool workers --json` lists it.")],
    grader_options: Annotated[str, typer.Option("--options", help="Its options, as JSON.")] = "null",
    rollout: Annotated[
        list[str] | None, typer.Option(help="Uid; may be repeated. Without it, the whole batch.")
    ] = None,
    annotation: Annotated[str, typer.Option(help="The name under which rewards are kept.")] = "reward",
    url: options.Url = options.DEFAULT_URL,
    api_key: options.ApiKey = None,
    as_json: options.Json = False,
) -> None:
    """Grade ended rollouts again, without sampling; grades become annotations, and results stay as they are."""
    from rolloutpool_trainer.cli import console

    try:
        given = json.loads(grader_options)
    except ValueError as error:
        raise typer.BadParameter(f"--options is not JSON: {error}") from None
    with console.client(url, api_key) as client:
        done = client.batch(batch_id).regrade(grader, given, rollouts=rollout, annotation=annotation)
    if as_json:
        console.document(done)
    else:
        console.line(f"graded {done.graded} of {done.total}, annotation {done.annotation}; left out {done.left_out}")
        for category, count in done.failures.items():
            console.line(f"FAIL {category}: {count}")
    if done.failures:
        raise typer.Exit(1)
