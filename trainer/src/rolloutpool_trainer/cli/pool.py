"""`rolloutpool up`: the whole pool on this machine, in the foreground."""

import os
from typing import TYPE_CHECKING, Annotated

import typer

from rolloutpool_trainer.cli import options

if TYPE_CHECKING:
    from rolloutpool_trainer.cli.documents import UpDocument
    from rolloutpool_trainer.local.pool import LocalPool


def up(
    workers: Annotated[int, typer.Option(min=0, help="Worker processes; one per core is right.")] = 2,
    port: options.Port = 9000,
    host: options.Host = "127.0.0.1",
    flower: Annotated[bool, typer.Option(help="Start Flower, which shows every ticket.")] = True,
    flower_port: options.FlowerPort = 5555,
    door: Annotated[bool, typer.Option(help="Start a door, which programs call as their model.")] = True,
    door_port: Annotated[int, typer.Option(envvar="ROLLOUTPOOL_DOOR_PORT", help="Port of the door.")] = 9100,
    runner: Annotated[
        options.RunnerProcess,
        typer.Option(envvar="ROLLOUTPOOL_RUNNER_PROCESS", help="Also start a runner, which starts programs so."),
    ] = options.RunnerProcess.OFF,
    state: options.StatePath = None,
    redis: options.Redis = "",
    tokenizer: options.Tokenizers = None,
    environments: options.EnvironmentsFile = None,
    as_json: options.Json = False,
) -> None:
    """Start a pool on this machine: Redis (unless --redis names one), API, workers, a door and Flower.

    Runs until Ctrl-C or SIGTERM; workers then put back what they can't finish. Accepted work goes on when the pool is
    started again with the same state directory.
    """
    from rolloutpool_common.process.stopping import stop_on_signals
    from rolloutpool_trainer.cli import console
    from rolloutpool_trainer.local.pool import LocalPool
    from rolloutpool_trainer.local.state import default_state

    pool = LocalPool(
        workers,
        port,
        host=host,
        flower=flower,
        flower_port=flower_port,
        door=door,
        door_port=door_port,
        runner=runner,
        state=state or default_state(),
        redis_url=redis or None,
        tokenizers=tokenizer or (),
        env={} if environments is None else {"ROLLOUTPOOL_ENVIRONMENTS_FILE": str(environments)},
        report=console.note,
    )
    stopping = "stopping: workers finish or give back what they run; once more ends everything at once"
    with stop_on_signals(pool.kill, lambda: console.note(stopping)), pool:
        _show(pool, runner, own_redis=not redis, as_json=as_json)
        pool.join()


def _show(pool: "LocalPool", runner: options.RunnerProcess, *, own_redis: bool, as_json: bool) -> None:
    """Says that the pool is up."""
    from rolloutpool_trainer.cli import console

    if not pool.wait_flower():
        console.note(f"Flower does not answer yet, and the pool works without it; see {pool.state.logs}/flower.log")
    if as_json:
        console.document(_document(pool, own_redis=own_redis))
    else:
        console.pairs(_addresses(pool, runner, own_redis=own_redis))
        console.note("running; Ctrl-C stops")


def _addresses(pool: "LocalPool", runner: options.RunnerProcess, *, own_redis: bool) -> dict[str, object]:
    """Says what runs, and where everything is."""
    from rolloutpool_trainer.cli.overview import viewer_address

    flower = f"{pool.flower_url}  (user:password in {pool.state.flower_auth})"
    return {
        "API": pool.url,
        "API docs": f"{pool.url}/docs",
        "viewer": viewer_address(pool.url),
        **({"Flower": flower} if pool.flower_url else {}),
        **({"door": pool.door_url} if pool.door_url else {}),
        **({} if runner == "off" else {"runner": f"programs run with {runner}"}),
        "workers": len(pool.workers),
        **({"plug-ins": _plugins(pool)} if os.environ.get("ROLLOUTPOOL_PLUGINS") else {}),
        "Redis": f"own, URL in {pool.state.redis_url}" if own_redis else "given",
        "keys for secrets": pool.secrets_file,
        "state": pool.state.path,
        "logs": pool.state.logs,
    }


def _plugins(pool: "LocalPool") -> str:
    """Names what the workers have beyond what each of this release has: `environment numbers; tool middle, search`."""
    from rolloutpool_common.protocol.offers import KINDS, offer_names, plugins_of

    found: dict[str, list[str]] = {}
    with pool.client() as client:
        offers = [
            offer_names(
                tools=worker.tools,
                agents=worker.agents,
                termination_strategies=worker.termination_strategies,
                environments=worker.environments,
                others=plugins_of(worker),
                reads=0,
            )
            for worker in client.workers()
        ]
    # Releases before this one lack it, so it is offered, and still no plug-in's.
    for offered in sorted({name for offer in offers for name in offer} - {"agent:text_steps"}):
        kind, _, name = offered.partition(":")
        found.setdefault(KINDS[kind], []).append(name)
    return "; ".join(f"{kind} {', '.join(names)}" for kind, names in found.items()) or "none"


def _document(pool: "LocalPool", *, own_redis: bool) -> "UpDocument":
    from rolloutpool_trainer.cli.documents import UpDocument
    from rolloutpool_trainer.cli.overview import viewer_address

    return UpDocument(
        api=pool.url,
        docs=f"{pool.url}/docs",
        viewer=viewer_address(pool.url),
        flower=pool.flower_url,
        door=pool.door_url,
        flower_auth_file=None if pool.flower_url is None else str(pool.state.flower_auth),
        workers=len(pool.workers),
        redis_url_file=str(pool.state.redis_url) if own_redis else None,
        secrets_file=str(pool.secrets_file),
        state=str(pool.state.path),
        logs=str(pool.state.logs),
    )
