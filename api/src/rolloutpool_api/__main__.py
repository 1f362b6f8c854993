"""`python -m rolloutpool_api`: one API process until SIGTERM or SIGINT.

On a signal the process refuses new connections, tells the requests that wait for results to ask again, finishes the
responses that it is writing, and ends within seconds. Exit codes: 0 stopped as asked, 2 bad settings, a port that is in
use, a Redis at another address than they say, or one with the data of another version.
"""

import asyncio
import errno
import signal
import socket
import sys

import structlog
import uvicorn
from fastapi import FastAPI

from rolloutpool_api.app import create_app
from rolloutpool_api.settings import ApiSettings
from rolloutpool_api.uvicorn_compat import StoppingServer, head_limits
from rolloutpool_api.waiting_heads import WaitingHeads
from rolloutpool_common.errors import RolloutPoolError
from rolloutpool_common.process.garbage import collect_rarely
from rolloutpool_common.process.open_files import allow_open_files
from rolloutpool_common.process.settings import SettingsInvalid, refuse_start
from rolloutpool_common.store import ForeignSchema, SecretsFileInvalid, Store, StoreMisaddressed, check_addresses

FINISH_SECONDS = 5
"""How long the responses that are being written may take when the process stops."""
IDLE_SECONDS = 5
"""How long a connection is kept after an answer if nothing more comes."""
BACKLOG = 2048


class BindFailed(RolloutPoolError):
    """The port is in use."""


class ApiServer(StoppingServer):
    """The HTTP server of the API. When it stops, it first tells the requests that wait for results to ask again."""

    def __init__(self, app: FastAPI, *, log_config: None = None) -> None:
        """Prepares to serve an app of `create_app`."""
        settings: ApiSettings = app.state.services.settings
        config = uvicorn.Config(
            app,
            loop="uvloop",
            http=head_limits(WaitingHeads(settings.head_seconds)),
            ws="none",
            log_config=log_config,
            access_log=False,
            server_header=False,
            # The client is whatever connects. uvicorn would trust any X-Forwarded-For that comes from this machine.
            proxy_headers=False,
            timeout_graceful_shutdown=FINISH_SECONDS,
            timeout_keep_alive=IDLE_SECONDS,
        )
        super().__init__(config, on_stop=app.state.services.stop)


def bind(host: str, port: int, *, settings: tuple[str, str]) -> socket.socket:
    """A socket at an address; raises `BindFailed`, whose message names the settings of host and port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise BindFailed(
                f"port {port} on {host} is in use: stop what listens there, or choose another port with "
                f"{settings[1]} (0 picks a free one)"
            ) from None
        raise BindFailed(
            f"can't listen on {host} port {port}: {error.strerror}. Choose others with {settings[0]} and {settings[1]}"
        ) from None


def listen(settings: ApiSettings) -> socket.socket:
    """A socket at the API's address; raises `BindFailed`."""
    names = ("ROLLOUTPOOL_API_HOST", "ROLLOUT_SERVER_PORT")
    return bind(settings.api_host, settings.rollout_server_port, settings=names)


async def refuse_foreign_schema(redis_url: str) -> None:
    """Raises `ForeignSchema` if Redis answers and holds the data of another version. Redis may be down."""
    store = Store.open(redis_url)
    try:
        await store.check_schema()
    finally:
        await store.close()


def main() -> int:
    """Runs the API; returns its exit code."""
    try:
        settings = ApiSettings.from_environment()
        app = create_app(settings)
        # Before the port is bound: an API that must not touch this Redis must not take requests for it either.
        check_addresses(settings.redis_urls)
        asyncio.run(refuse_foreign_schema(settings.redis_url.get_secret_value()))
        listener = listen(settings)
    except (SettingsInvalid, SecretsFileInvalid, ForeignSchema, StoreMisaddressed, BindFailed) as error:
        return refuse_start("api", error)
    settings.start_logging()
    allow_open_files()
    server = ApiServer(app)
    for number in (signal.SIGTERM, signal.SIGINT):
        # uvicorn raises a signal again once it has stopped, and the default would turn that into a failure.
        signal.signal(number, server.handle_exit)
    host, port = listener.getsockname()[:2]
    structlog.stdlib.get_logger(__name__).info("api listens", host=host, port=port)
    collect_rarely()
    server.run(sockets=[listener])
    return 0


if __name__ == "__main__":
    sys.exit(main())
