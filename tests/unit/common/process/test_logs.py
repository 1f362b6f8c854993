"""Log lines are one JSON object each, whatever an id holds, ours and the libraries' alike."""

import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from rolloutpool_common.process.logs import LogFormat, configure_logs


@pytest.fixture
def configured() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    yield
    root.handlers, root.level = handlers, level
    structlog.reset_defaults()


@pytest.mark.usefixtures("configured")
def test_json_lines(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("info", "json")
    forged = 'x\n{"event": "forged"}\x1b[0m'
    structlog.stdlib.get_logger("ours").info("rollout", rollout_id=forged)
    logging.getLogger("theirs").warning("said %s", forged)
    logging.getLogger("theirs").debug("not shown")
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(line["event"], line["logger"], line["level"]) for line in lines] == [
        ("rollout", "ours", "info"),
        (f"said {forged}", "theirs", "warning"),
    ]
    assert lines[0]["rollout_id"] == forged


@pytest.mark.usefixtures("configured")
def test_console_lines_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("info", "console")
    structlog.stdlib.get_logger("ours").info("rollout", rollout_id="x\nforged \x1b[31m", batch_id="\x1b[2J")
    logging.getLogger("theirs").warning("said %s", "x\nforged\x1b[31m")
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 2
    assert "\x1b" not in said


def fail(secret: str) -> None:
    headers = {"Authorization": f"Bearer {secret}"}
    raise RuntimeError(f"{len(headers)}\n2026-01-01T00:00:00Z [info] forged\x1b[31m\r\u2028forged")


@pytest.mark.usefixtures("configured")
@pytest.mark.parametrize("form", ["json", "console"])
def test_tracebacks_forge_nothing_and_show_no_variables(capsys: pytest.CaptureFixture[str], form: LogFormat) -> None:
    configure_logs("info", form)
    try:
        # Not as one word: a traceback quotes this very line.
        fail("MAR" + "KER")
    except RuntimeError:
        logging.getLogger("theirs").exception("it failed")
        structlog.stdlib.get_logger("ours").exception("it failed")
    said = capsys.readouterr().err
    assert "MARKER" not in said
    assert "\x1b" not in said
    assert said.count("in fail") == 2
    first, *rest = said.splitlines()
    if form == "json":
        assert [json.loads(line)["event"] for line in (first, *rest)] == ["it failed"] * 2
    else:
        assert len([line for line in (first, *rest) if not line.startswith("| ")]) == 2
