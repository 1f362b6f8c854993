"""Log lines are one JSON object each, whatever an id holds, ours and the libraries' alike."""

import asyncio
import contextvars
import json
import logging
import sys
import threading
import warnings
from collections.abc import Iterator

import pytest
import structlog

from rolloutpool_common.outcomes import RolloutStatus
from rolloutpool_common.process.logs import LogFormat, _JsonFormatter, bind_log, configure_logs, log_event


@pytest.fixture(autouse=True)
def configured() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    hooks = sys.excepthook, threading.excepthook
    yield
    root.handlers, root.level = handlers, level
    sys.excepthook, threading.excepthook = hooks
    logging.captureWarnings(False)
    structlog.reset_defaults()


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


def test_an_event_has_its_fields_and_those_of_its_task(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("info", "json")
    log = logging.getLogger("ours")

    async def rollout(number: int) -> None:
        bind_log(rollout_uid=f"b-{number}")
        await asyncio.sleep(0)
        log_event(log, logging.INFO, "rollout ended", turns=number, reason="x\nforged")
        await asyncio.to_thread(log.warning, "a tool")

    async def both() -> None:
        await asyncio.gather(rollout(1), rollout(2))
        log.info("outside", extra={"prompt": "a text of others"})
        log_event(log, logging.DEBUG, "not shown")

    asyncio.run(both())
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    ended = {line["rollout_uid"]: line["turns"] for line in lines if line["event"] == "rollout ended"}
    assert ended == {"b-1": 1, "b-2": 2}
    assert {line["rollout_uid"] for line in lines if line["event"] == "a tool"} == {"b-1", "b-2"}
    (outside,) = [line for line in lines if line["event"] == "outside"]
    assert not {"rollout_uid", "prompt"} & set(outside)


def test_warnings_of_python_are_lines_too(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("info", "json")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(True)
        warnings.warn("you run as root", RuntimeWarning, stacklevel=1)
        logging.captureWarnings(False)
    (line,) = capsys.readouterr().err.splitlines()
    assert "you run as root" in json.loads(line)["event"]


def test_an_error_that_ends_a_thread_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("info", "json")

    def fail() -> None:
        raise KeyError("x\nforged")

    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()
    (line,) = capsys.readouterr().err.splitlines()
    found = json.loads(line)
    assert (found["level"], found["event"]) == ("critical", "uncaught error")
    assert "KeyError" in found["exception"]


def test_an_event_of_ours_is_written_as_structlog_would(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("debug", "json")
    formatter = logging.getLogger().handlers[0].formatter
    assert isinstance(formatter, _JsonFormatter)
    records: list[logging.LogRecord] = []
    log = logging.getLogger("ours")

    def noted(record: logging.LogRecord) -> bool:
        records.append(record)
        return True

    def rollout() -> None:
        bind_log(rollout_uid="b-1", turn=2)
        status = RolloutStatus.COMPLETED
        log_event(log, logging.INFO, "rollout ended", status=status, n=1.5, failure=None, text="é\n\x1b")
        log_event(log, logging.WARNING, "odd", value=object, level_of="x")
        log.info("plain %s", "text")

    log.addFilter(noted)
    try:
        contextvars.copy_context().run(rollout)
    finally:
        log.removeFilter(noted)
    capsys.readouterr()
    for record in records:
        ours, theirs = (json.loads(one.format(record)) for one in (formatter, formatter._others))
        assert {**ours, "timestamp": ""} == {**theirs, "timestamp": ""}
        assert len(ours["timestamp"]) in (len(theirs["timestamp"]), len(theirs["timestamp"]) - 7)
    assert len(records) == 3
