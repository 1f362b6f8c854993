"""Holds what the command uses of typer beyond its documented interface, so that an upgrade breaks this file alone.

- `typer.core.TyperGroup.invoke(ctx)` runs the chosen command, and lets its errors through.

`test_typer_compat.py` runs it against the installed typer.
"""

from typing import Any

import typer
import typer.core


class ErrorLineGroup(typer.core.TyperGroup):
    """Turns our own errors into one line for people, and exit code 1."""

    def invoke(self, ctx: Any) -> Any:
        """Runs the command."""
        try:
            return super().invoke(ctx)
        except Exception as error:
            # Imported only now, so that `--help` stays quick.
            from rolloutpool_common.errors import RolloutPoolError

            if not isinstance(error, RolloutPoolError | TimeoutError):
                raise
            from rolloutpool_trainer.cli import console

            console.fail(error)
            raise typer.Exit(1) from error
