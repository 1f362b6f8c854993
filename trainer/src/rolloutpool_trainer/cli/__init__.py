"""The `rolloutpool` command. Each other module here has commands that belong together.

Nothing slow is imported before a command needs it, so that `--help` and completion answer at once. An error is one
line on stderr and exit code 1; a traceback means a defect of this program.
"""

import typer

from rolloutpool_trainer.cli import actors, batches, demo, doctor, keys, operations, pool, rollouts, tokenizers, view
from rolloutpool_trainer.cli.typer_compat import ErrorLineGroup

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
    rollouts.show,
    view.view,
    rollouts.cancel,
    doctor.doctor,
    operations.workers,
    operations.preflight,
    operations.dead_letters,
    operations.requeue,
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
