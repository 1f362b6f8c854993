"""Commands that run one actor: `api`, `worker`, `flower`, `mock-trainer`.

The process becomes `python -m` of the actor. Settings without an option come from the
environment.
"""

import os
import sys
import time
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from rolloutpool_trainer.cli import options

if TYPE_CHECKING:
    from rolloutpool_trainer.endpoint.app import CallbackApp

DEFAULT_PORTS = "8081-8084"
JsonLogs = Annotated[bool, typer.Option("--json", help="Log JSON on standard error, also on a terminal.")]
TOOLS_EVERY_SECONDS = 5.0
"""How often a scripted trainer asks for the tools that it could not read."""


def api(
    redis: options.Redis,
    port: options.Port = 9000,
    host: options.Host = "127.0.0.1",
    as_json: JsonLogs = False,
) -> None:
    """Run the API alone, with an existing Redis."""
    settings = {"ROLLOUTPOOL_REDIS_URL": redis, "ROLLOUT_SERVER_PORT": str(port), "ROLLOUTPOOL_API_HOST": host}
    become("rolloutpool_api", settings | log_format(as_json=as_json))


def worker(
    redis: options.Redis,
    processes: Annotated[int, typer.Option(min=1, help="How many worker processes; one per core is right.")] = 1,
    tokenizer: options.Tokenizers = None,
    as_json: JsonLogs = False,
    environments: options.EnvironmentsFile = None,
) -> None:
    """Run workers alone, with an existing Redis. SIGTERM drains them; a worker that ends is started again."""
    settings = {"ROLLOUTPOOL_REDIS_URL": redis}
    if environments:
        settings["ROLLOUTPOOL_ENVIRONMENTS_FILE"] = str(environments)
    if tokenizer:
        settings["ROLLOUTPOOL_TOKENIZERS"] = ",".join(tokenizer)
    become("rolloutpool_worker", settings | log_format(as_json=as_json), "--processes", str(processes))


def flower(
    redis: options.Redis,
    flower_port: options.FlowerPort = 5555,
    host: Annotated[str, typer.Option(envvar="ROLLOUTPOOL_FLOWER_HOST", help="Address to listen on.")] = "127.0.0.1",
    as_json: JsonLogs = False,
) -> None:
    """Run Flower alone; ROLLOUTPOOL_FLOWER_AUTH is its user:password."""
    settings = {
        "ROLLOUTPOOL_REDIS_URL": redis,
        "ROLLOUTPOOL_FLOWER_PORT": str(flower_port),
        "ROLLOUTPOOL_FLOWER_HOST": host,
    }
    become("rolloutpool_worker.queue.flower", settings | log_format(as_json=as_json))


def mock_trainer(
    ports: Annotated[str, typer.Option(help="Such as 8081-8084 or 8081,8090.")] = DEFAULT_PORTS,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    tokenizer: Annotated[str, typer.Option(help="The tokenizer of its tokens.")] = "rolloutpool/tiny",
    pool: Annotated[
        str, typer.Option("--pool", envvar="ROLLOUTPOOL_URL", help="The pool whose tools its prompts describe.")
    ] = options.DEFAULT_URL,
    only: Annotated[list[str] | None, typer.Option(help="Describe this tool only; may be repeated.")] = None,
    latency: Annotated[float, typer.Option(min=0, help="Seconds per model call.")] = 0.0,
    api_key: options.ApiKey = None,
    as_json: options.Json = False,
) -> None:
    """Run a scripted trainer, which plays calculator rollouts with real tokens."""
    import threading

    from rolloutpool_common.process.stopping import stop_on_signals
    from rolloutpool_trainer.cli import console, tokenizers
    from rolloutpool_trainer.cli.documents import MockTrainerDocument

    numbers = _ports(ports)
    # First, because its error says which extra is not installed.
    loaded = tokenizers.load(tokenizer)
    from rolloutpool_trainer import callback_app
    from rolloutpool_trainer.endpoint.server import serve_callback
    from rolloutpool_trainer.testing import ScriptedPolicy

    policy = ScriptedPolicy(loaded, latency=latency)
    app = callback_app(policy, tokenizer=loaded, tools=pool, only=only, pool_api_key=api_key)
    with stop_on_signals(lambda: os._exit(1), lambda: None), serve_callback(app, numbers, host) as served:
        if as_json:
            console.document(MockTrainerDocument(urls=list(served.urls)), one_line=True)
        console.note(f"scripted trainer at {', '.join(served.urls)}; Ctrl-C stops")
        # In a thread, because a signal ends the main thread wherever it is, and that must not be an event loop.
        threading.Thread(target=read_tools, args=(app,), daemon=True).start()
        threading.Event().wait()


def read_tools(app: "CallbackApp") -> None:
    """Asks the pool until it has said its tools; says each new reason why it has not."""
    import asyncio

    from rolloutpool_trainer.cli import console
    from rolloutpool_trainer.endpoint.errors import EndpointError

    told = ""
    while True:
        try:
            asyncio.run(app.read_tools())
        except EndpointError as error:
            if error.message != told:
                told = error.message
                console.note(f"{told} Turns are refused until then; asking again every {TOOLS_EVERY_SECONDS:.0f} s")
        else:
            if told:
                console.note("the pool's tools are read; turns are answered now")
            return
        time.sleep(TOOLS_EVERY_SECONDS)


def _ports(text: str) -> list[int]:
    """Reads ports such as `8081-8084,8090`."""
    try:
        spans = [part.split("-", 1) for part in text.split(",")]
        ports = [port for span in spans for port in range(int(span[0]), int(span[-1]) + 1)]
    except ValueError:
        ports = []
    if not ports or not all(0 <= port <= 65535 for port in ports):
        raise typer.BadParameter(f"--ports {text}: write 8081-8084 or 8081,8090")
    return ports


def become(module: str, settings: dict[str, str], *arguments: str) -> NoReturn:
    """Replaces this process by the actor, which then gets the signals and gives the exit code."""
    check_installed(module.partition(".")[0])
    os.environ.update(settings)
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", module, *arguments])


def log_format(*, as_json: bool) -> dict[str, str]:
    """Returns the setting for logs as the option says."""
    return {"ROLLOUTPOOL_LOG_FORMAT": "json"} if as_json else {}


def check_installed(package: str) -> None:
    """Raises `MissingExtra` where a package of the pool is not installed."""
    import importlib.util

    if importlib.util.find_spec(package) is None:
        from rolloutpool_trainer.errors import MissingExtra

        raise MissingExtra.needed("this command", package)
