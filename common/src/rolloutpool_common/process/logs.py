"""Logs of our own code and of all libraries: one JSON object per line in containers, readable lines on a terminal.

Control characters are escaped, so that an id that contains a line break or a terminal escape can't forge a line. Each
line of a traceback begins with a bar, because the text of an exception may come from outside. Logs hold ids and
counts, never prompts, bodies or secrets.

A line is an event: its name, and what it is about as fields (`log_event`). What holds for all lines of a task, such as
its rollout, is bound once (`bind_log`). Warnings of Python are lines as well, and so are errors that end a thread or
the process.
"""

import json
import logging
import sys
import threading
import types
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Literal

import structlog

_FIELDS = "event_fields"
# One variable for all fields: structlog's own binding has one for each, and a turn is bound at each turn.
_bound: ContextVar[Mapping[str, object]] = ContextVar("bound", default={})  # noqa: B039  nobody changes it in place

LogFormat = Literal["auto", "json", "console"]
"""`auto`: readable on a terminal, JSON elsewhere."""

QUIET = ("httpx", "httpcore", "uvicorn.access", "celery.app.trace", "celery.worker.strategy")
"""These log a line per request. Our own lines say the same, and each line costs milliseconds per rollout."""


def log_event(log: logging.Logger, level: int, name: str, **fields: object) -> None:
    """Writes one line."""
    log.log(level, name, extra={_FIELDS: fields})


def bind_log(**fields: object) -> None:
    """Adds fields to all later lines of the task that runs, and of the tasks and threads that it starts."""
    _bound.set({**_bound.get(), **fields})


def configure_logs(level: str, form: LogFormat) -> None:
    """Send all logs of this process to standard error."""
    shared: list[structlog.typing.Processor] = [
        _add_bound,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    on_terminal = sys.stderr.isatty()
    as_json = form == "json" or (form == "auto" and not on_terminal)
    last: list[structlog.typing.Processor] = (
        [structlog.processors.JSONRenderer()]
        if as_json
        else [_escape, structlog.dev.ConsoleRenderer(colors=on_terminal)]
    )
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[*shared, _add_fields],
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            # For the console too: its own tracebacks show local variables, where prompts and secrets are.
            structlog.processors.format_exc_info,
            *last,
        ],
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter(formatter) if as_json else formatter)
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.getLevelNamesMapping()[level.upper()])
    # Otherwise they are plain text among the lines.
    logging.captureWarnings(True)
    sys.excepthook = _log_uncaught
    threading.excepthook = lambda thrown: _log_uncaught(thrown.exc_type, thrown.exc_value, thrown.exc_traceback)
    for name in QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )


class _JsonFormatter(logging.Formatter):
    """Writes an event of ours at once, and leaves all other lines to structlog.

    Its chain of processors is 60 calls of functions, and each rollout that ends has a line.
    """

    def __init__(self, others: logging.Formatter) -> None:
        super().__init__()
        self._others = others

    def format(self, record: logging.LogRecord) -> str:
        fields: Mapping[str, object] | None = getattr(record, _FIELDS, None)
        if fields is None or record.exc_info or record.stack_info or record.args:
            return self._others.format(record)
        event = {
            "event": record.msg,
            **_bound.get(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "timestamp": datetime.now(UTC).isoformat().replace("+00:00", "Z"),
            **fields,
        }
        try:
            return json.dumps(event)
        except (TypeError, ValueError):
            return self._others.format(record)


def _log_uncaught(
    kind: type[BaseException], error: BaseException | None, traceback: types.TracebackType | None
) -> None:
    logging.getLogger(__name__).critical("uncaught error", exc_info=(kind, error or kind(), traceback))


def _add_bound(_: Any, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    return {**_bound.get(), **event}


def _add_fields(_: Any, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Adds what `log_event` was given. Other libraries' extras stay out: they may hold anything."""
    return {**event, **getattr(event.get("_record"), _FIELDS, {})}


def _escape(_: Any, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Escape control characters, as JSON does by itself; the console renderer would pass them on."""
    shown = {key: _printable(value) if isinstance(value, str) else value for key, value in event.items()}
    if "exception" in event:
        shown["exception"] = "\n".join(f"| {_printable(line)}" for line in str(event["exception"]).splitlines())
    return shown


def _printable(text: str) -> str:
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
