"""Options that several commands share, each with its environment variable."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from rolloutpool_trainer.cli import completion

DEFAULT_URL = completion.DEFAULT_URL

Url = Annotated[str, typer.Option("--url", envvar="ROLLOUTPOOL_URL", help="Where the pool's API is.")]
ApiKey = Annotated[
    str | None,
    typer.Option("--api-key", envvar="ROLLOUTPOOL_API_KEY", show_envvar=True, help="Bearer key of the pool's API."),
]
BatchId = Annotated[str, typer.Argument(help="The id that `submit` printed.", autocompletion=completion.batch_ids)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON; docs/schemas has a schema for each command.")]
Host = Annotated[str, typer.Option("--host", envvar="ROLLOUTPOOL_API_HOST", help="Address to listen on.")]
Port = Annotated[int, typer.Option("--port", envvar="ROLLOUT_SERVER_PORT", min=1, max=65535, help="Port of the API.")]
FlowerPort = Annotated[
    int,
    typer.Option("--flower-port", envvar="ROLLOUTPOOL_FLOWER_PORT", min=1, max=65535, help="Port of Flower."),
]
Redis = Annotated[
    str,
    typer.Option("--redis", envvar="ROLLOUTPOOL_REDIS_URL", help="URL of the pool's Redis.", show_default=False),
]
StatePath = Annotated[
    Path | None,
    typer.Option(
        "--state",
        envvar="ROLLOUTPOOL_STATE",
        help="Directory that keeps accepted work.",
        show_default="the user's state directory",
    ),
]
Tokenizers = Annotated[
    list[str] | None,
    typer.Option("--tokenizer", help="Load it before taking work; may be repeated. Also ROLLOUTPOOL_TOKENIZERS."),
]

EnvironmentsFile = Annotated[
    Path | None,
    typer.Option(
        "--environments",
        envvar="ROLLOUTPOOL_ENVIRONMENTS_FILE",
        help="TOML file of environments with their servers.",
        show_default=False,
    ),
]


class RunnerProcess(StrEnum):
    """Says how a runner starts programs."""

    OFF = "off"
    BUBBLEWRAP = "bubblewrap"
    DOCKER = "docker"
    UNSAFE = "unsafe"


def name_and_value(text: str, option: str) -> tuple[str, str]:
    """Reads `name=value`; raises `BadParameter`, which names the option."""
    name, separator, value = text.partition("=")
    if not separator:
        raise typer.BadParameter(f"{option} {text}: write name=value")
    return name, value
