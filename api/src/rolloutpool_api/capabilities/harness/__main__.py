"""`python -m rolloutpool_api.capabilities.harness`: one door until SIGTERM or SIGINT.

Exit codes: 0 stopped as asked, 2 bad settings, a port that is in use, or a Redis with the data of another version.
"""

import asyncio
import signal
import socket
import sys

import structlog
import uvicorn

from rolloutpool_api.__main__ import BindFailed, bind, refuse_foreign_schema
from rolloutpool_api.capabilities.harness.calls import DoorCalls
from rolloutpool_api.capabilities.harness.door import Door
from rolloutpool_api.capabilities.harness.settings import DoorSettings
from rolloutpool_api.uvicorn_compat import head_limits
from rolloutpool_api.waiting_heads import WaitingHeads
from rolloutpool_common.process.open_files import allow_open_files
from rolloutpool_common.process.settings import SettingsInvalid, refuse_start
from rolloutpool_common.queue.publisher import Publisher
from rolloutpool_common.store import (
    ForeignSchema,
    SecretsFileInvalid,
    SecretStore,
    Store,
    StoreMisaddressed,
    check_addresses,
)

FINISH_SECONDS = 1
"""Calls that are held are cut: their programs ask again, here or at another door, and find the same turns."""
BACKLOG = 2048


def main() -> int:
    """Runs a door; returns its exit code."""
    try:
        settings = DoorSettings.from_environment()
        redis_url = settings.redis_url.get_secret_value()
        store = Store.open(redis_url, secrets=SecretStore.load(settings.secrets_file))
        check_addresses(settings.redis_urls)
        asyncio.run(refuse_foreign_schema(redis_url))
        names = ("ROLLOUTPOOL_DOOR_HOST", "ROLLOUTPOOL_DOOR_PORT")
        listener = bind(settings.door_host, settings.door_port, settings=names)
    except (SettingsInvalid, SecretsFileInvalid, ForeignSchema, StoreMisaddressed, BindFailed) as error:
        return refuse_start("door", error)
    settings.start_logging()
    allow_open_files()
    host, port = listener.getsockname()[:2]
    calls = DoorCalls(store, f"{socket.gethostname()}:{port}", Publisher(store, settings.celery_url))
    config = uvicorn.Config(
        Door(settings, calls),
        loop="uvloop",
        http=head_limits(WaitingHeads(settings.head_seconds)),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_graceful_shutdown=FINISH_SECONDS,
    )
    server = uvicorn.Server(config)
    for number in (signal.SIGTERM, signal.SIGINT):
        # uvicorn raises a signal again once it has stopped, and the default would turn that into a failure.
        signal.signal(number, server.handle_exit)
    structlog.stdlib.get_logger(__name__).info("door listens", host=host, port=port)
    server.run(sockets=[listener])
    return 0


if __name__ == "__main__":
    sys.exit(main())
