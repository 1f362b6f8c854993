"""The `rolloutpool` command. Each other module here has commands that belong together.

Nothing slow is imported before a command needs it, so that `--help` and completion answer at once. An error is one
line on stderr and exit code 1; a traceback means a defect of this program.
"""

from typing import Annotated

import typer

from rolloutpool_trainer.cli import (
    actors,
    batches,
    demo,
    doctor,
    keys,
    logs,
    operations,
    overview,
    owners,
    pool,
    replay,
    rollouts,
    tokenizers,
    view,
)
from rolloutpool_trainer.cli.typer_compat import ErrorLineGroup
from rolloutpool_trainer.composition import COMMANDS, by_place

__all__ = ["app"]


app = typer.Typer(
    cls=ErrorLineGroup,
    help="A pool of rollout workers for agentic RL: exact token ids, exact masks.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (
    pool.up,
    demo.demo,
    batches.submit,
    batches.status,
    batches.watch,
    batches.results,
    batches.purge,
    owners.purge_owner,
    overview.batches,
    rollouts.show,
    replay.replay,
    view.view,
    rollouts.cancel,
    logs.logs,
    doctor.doctor,
    operations.workers,
    operations.preflight,
    operations.dead_letters,
    operations.requeue,
    *map(by_place, COMMANDS),
    tokenizers.check_tokenizer,
    tokenizers.conformance,
    actors.api,
    actors.worker,
    actors.flower,
    actors.mock_trainer,
    keys.make_secrets_key,
):
    app.command()(command)
app.command("make-key")(keys.make_api_key)
app.command("open")(overview.open_viewer)


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version
        from platform import python_version

        from rolloutpool_common.process.build import commit

        typer.echo(f"rolloutpool {version('rolloutpool-trainer')} (commit {commit()}, Python {python_version()})")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print version and commit.")
    ] = False,
) -> None:
    """Reads what stands before the command."""
