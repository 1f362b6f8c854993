"""Serves an ASGI app from a thread of this process, on one or several ports.

All ports share one event loop, because a `CallbackApp` needs that. The ports are bound before the thread starts: a
port that is taken is an error at once, and for port 0 the real number is known before the first request.
"""

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import uvicorn
from starlette.types import ASGIApp

from rolloutpool_trainer.endpoint.uvicorn_compat import SettledServer
from rolloutpool_trainer.errors import PortTaken, TrainerError

BACKLOG = 2048
GRACE_SECONDS = 3
"""How long requests in flight may finish when the server stops."""


@dataclass(frozen=True, slots=True)
class ServedCallback:
    """Says where the app listens."""

    host: str
    ports: tuple[int, ...]
    """In the order of the arguments; the real port in the place of 0."""

    @property
    def urls(self) -> tuple[str, ...]:
        """One base URL per port."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return tuple(f"http://{host}:{port}" for port in self.ports)

    @property
    def url(self) -> str:
        """Base URL of the first port."""
        return self.urls[0]


@contextmanager
def serve_callback(app: ASGIApp, ports: Sequence[int], host: str = "127.0.0.1") -> Iterator[ServedCallback]:
    """Serves the app until the block ends.

    Args:
        app: Any ASGI app.
        ports: To listen on; 0 takes a free one.
        host: Address to listen on.

    Raises:
        PortTaken: One of the ports cannot be bound. Then none is served.
        TrainerError: The server did not start; its log says why.
    """
    with ExitStack() as stack:
        sockets = [stack.enter_context(_listen(host, port)) for port in ports]
        config = uvicorn.Config(
            app, log_config=None, access_log=False, ws="none", timeout_graceful_shutdown=GRACE_SECONDS
        )
        server = SettledServer(config)
        failures: list[BaseException] = []

        def run() -> None:
            try:
                server.run(sockets)
            # uvicorn raises SystemExit if the app does not start. Nothing catches it in a thread, so it is kept.
            except BaseException as failure:
                failures.append(failure)
            finally:
                server.settled.set()

        thread = threading.Thread(target=run, name="callback-server", daemon=True)
        thread.start()
        try:
            server.settled.wait()
            if not server.started:
                raise TrainerError("the callback server did not start; see its log") from next(iter(failures), None)
            yield ServedCallback(host, tuple(bound.getsockname()[1] for bound in sockets))
        finally:
            server.stop_soon()
            thread.join()


def _listen(host: str, port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise PortTaken(f"cannot listen on port {port} of {host}: {error.strerror}; give another port") from error
    return listener
