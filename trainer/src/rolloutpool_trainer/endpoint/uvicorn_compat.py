"""Holds what the endpoint uses of uvicorn beyond its documented interface, so that an upgrade breaks this file alone.

- `Server.startup`: returns when the sockets accept connections.
- `Server.started` and `should_exit`: whether the start succeeded, and the way to stop from another thread.

`test_uvicorn_compat.py` fails where one of them is gone; `test_server.py` shows that they do what we need.
"""

import socket
import threading

import uvicorn


class SettledServer(uvicorn.Server):
    """Sets an event when it accepts connections, so that nothing has to poll it."""

    def __init__(self, config: uvicorn.Config) -> None:
        """Prepares; `run` starts it."""
        super().__init__(config)
        self.settled = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Starts to accept connections, then sets the event."""
        await super().startup(sockets)
        self.settled.set()

    def stop_soon(self) -> None:
        """Asks the server to stop; safe to call from another thread."""
        self.should_exit = True
