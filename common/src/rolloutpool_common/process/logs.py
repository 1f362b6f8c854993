"""Logs of our own code and of all libraries: one JSON object per line in containers, readable lines on a terminal.

Control characters are escaped, so that an id that contains a line break or a terminal escape can't forge a line. Each
line of a traceback begins with a bar, because the text of an exception may come from outside. Logs hold ids and
counts, never prompts, bodies or secrets.
"""

import logging
import sys
from typing import Any, Literal

import structlog

__all__ = ["LogFormat", "configure_logs"]

LogFormat = Literal["auto", "json", "console"]
"""`auto`: readable on a terminal, JSON elsewhere."""

QUIET = ("httpx", "httpcore", "uvicorn.access", "celery.app.trace", "celery.worker.strategy")
"""These log a line per request. Our own lines say the same, and each line costs milliseconds per rollout."""


def configure_logs(level: str, form: LogFormat) -> None:
    """Send all logs of this process to standard error.

    Args:
        level: The lowest level that is shown, e.g. `info`.
        form: See `LogFormat`.
    """
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    on_terminal = sys.stderr.isatty()
    last: list[structlog.typing.Processor] = (
        [structlog.processors.JSONRenderer()]
        if form == "json" or (form == "auto" and not on_terminal)
        else [_escape, structlog.dev.ConsoleRenderer(colors=on_terminal)]
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                # For the console too: its own tracebacks show local variables, where prompts and secrets are.
                structlog.processors.format_exc_info,
                *last,
            ],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.getLevelNamesMapping()[level.upper()])
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


def _escape(_: Any, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Escape control characters, as JSON does by itself; the console renderer would pass them on."""
    shown = {key: _printable(value) if isinstance(value, str) else value for key, value in event.items()}
    if "exception" in event:
        shown["exception"] = "\n".join(f"| {_printable(line)}" for line in str(event["exception"]).splitlines())
    return shown


def _printable(text: str) -> str:
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
