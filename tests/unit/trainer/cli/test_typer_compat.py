"""The internals of typer that `typer_compat` uses still work; a failure here names what changed."""

import pytest
import typer
from typer.testing import CliRunner

from rolloutpool_common.errors import RolloutPoolError
from rolloutpool_trainer.cli.typer_compat import ErrorLineGroup


@pytest.mark.parametrize("error", [RolloutPoolError("as expected"), TimeoutError("too late")])
def test_an_error_of_ours_is_a_line_and_an_exit_code(error: Exception) -> None:
    app = typer.Typer(cls=ErrorLineGroup)

    @app.command()
    def fail() -> None:
        raise error

    @app.command()
    def other() -> None:
        raise KeyError("a defect")

    result = CliRunner().invoke(app, ["fail"])
    assert result.exit_code == 1
    assert isinstance(result.exception, SystemExit)
    assert isinstance(CliRunner().invoke(app, ["other"]).exception, KeyError)
