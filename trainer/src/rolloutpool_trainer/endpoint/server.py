"""Serves an ASGI app from a thread of this process, on real sockets and several ports at once.

All ports share one event loop, as a `CallbackApp` demands. The ports are bound before the thread starts, so a taken
port is an error here and now, and port 0 has its number before the first request.
"""

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import uvicorn
from starlette.types import ASGIApp

from rolloutpool_trainer.errors import PortTaken, TrainerError

__all__ = ["ServedCallback", "serve_callback"]

BACKLOG = 2048
GRACE_SECONDS = 3
"""How long requests in flight may finish when the server stops."""


@dataclass(frozen=True, slots=True)
class ServedCallback:
    """Where the app listens."""

    host: str
    ports: tuple[int, ...]
    """In the order asked for; the real one where 0 was asked."""

    @property
    def urls(self) -> tuple[str, ...]:
        """One base URL per port."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return tuple(f"http://{host}:{port}" for port in self.ports)

    @property
    def url(self) -> str:
        """The first of them."""
        return self.urls[0]


class _Server(uvicorn.Server):
    """Says when it accepts, instead of being polled."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.settled = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.settled.set()


@contextmanager
def serve_callback(app: ASGIApp, ports: Sequence[int], host: str = "127.0.0.1") -> Iterator[ServedCallback]:
    """Serves the app until the block ends.

    Raises:
        PortTaken: one of the ports cannot be had; none is served then.
        TrainerError: the server did not start; its log says why.
    """
    with ExitStack() as stack:
        sockets = [stack.enter_context(_listen(host, port)) for port in ports]
        config = uvicorn.Config(
            app, log_config=None, access_log=False, ws="none", timeout_graceful_shutdown=GRACE_SECONDS
        )
        server = _Server(config)
        failures: list[BaseException] = []

        def run() -> None:
            try:
                server.run(sockets)
            # uvicorn leaves by SystemExit if the app does not start; a thread has nobody to raise it to.
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
            server.should_exit = True
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
