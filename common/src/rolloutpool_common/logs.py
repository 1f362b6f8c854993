"""Logs: JSON lines in production, readable on a terminal; ids and counts, never prompts or secrets.

Values are rendered as JSON or as Python literals, so that no text from outside can start a line of its own.
"""

import logging
import sys

import structlog

__all__ = ["configure_logs"]


def configure_logs(*, level: str, json: bool) -> None:
    """Sends all logging of this process to standard error, through one formatter."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if json
        else structlog.processors.KeyValueRenderer(key_order=["timestamp", "level", "logger", "event"], sort_keys=True)
    )
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            renderer,
        ],
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    # Per-request lines of libraries say nothing that our own lines don't, and cost milliseconds per rollout.
    for noisy in ("httpx", "httpcore", "uvicorn.access", "celery.app.trace", "celery.worker.strategy"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
