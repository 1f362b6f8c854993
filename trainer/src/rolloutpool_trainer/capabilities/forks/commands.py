"""`rolloutpool fork`."""

from typing import Annotated

import typer

from rolloutpool_trainer.cli import completion, options
from rolloutpool_trainer.cli.batches import json_object, show_accepted


def fork(
    rollout_id: Annotated[
        str, typer.Argument(metavar="ROLLOUT", help="Its uid, or the caller's own id.", autocompletion=completion.ids)
    ],
    turn: Annotated[int, typer.Option(min=1, help="The first turn that is sampled anew.")],
    trainer: Annotated[
        list[str], typer.Option(help="Where the policy is called; may be repeated. The parent's is not kept.")
    ],
    n: Annotated[int, typer.Option("-n", min=1, max=1024, help="How many forks.")] = 1,
    seed: Annotated[int | None, typer.Option(help="Of the first fork's sampling; the next ones count on.")] = None,
    callback_key: Annotated[
        str | None,
        typer.Option(envvar="ROLLOUTPOOL_CALLBACK_KEY", help="Bearer key of the endpoint; better from the variable."),
    ] = None,
    option: Annotated[str, typer.Option("--options", help="Other fields of the request, as a JSON object.")] = "{}",
    wait: Annotated[bool, typer.Option("--wait", help="Show progress until all have ended.")] = False,
    url: options.Url = options.DEFAULT_URL,
    api_key: options.ApiKey = None,
    as_json: options.Json = False,
) -> None:
    """Go on from a turn of a finished rollout, with the same tokens before it; prints the batch of the forks."""
    from rolloutpool_trainer.cli import console

    more = json_object(option, "--options")
    if callback_key is not None:
        more["callback_api_key"] = callback_key
    endpoint = trainer[0] if len(trainer) == 1 else trainer
    with console.client(url, api_key) as client:
        batch = client.fork(rollout_id, turn, trainer=endpoint, n=n, seed=seed, **more)
        show_accepted(batch, wait=wait, as_json=as_json)
