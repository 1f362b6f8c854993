"""What the worker uses of aiohttp beyond its documented interface, so that an upgrade breaks this file alone.

- `ClientResponse.start(connection)`: the one place where a reply's status is known and its connection is still held.
- `Connection.protocol`: the handle of the socket.
- `ResponseHandler.force_close()` and `.close()`: the connection is not kept for another request, or closed at once.

`test_aiohttp_compat.py` fails where one of them is gone; `test_transport.py` shows that they do what we need.
"""

import aiohttp
import httpx
from aiohttp.connector import Connection

__all__ = ["ClosingResponse"]


class ClosingResponse(aiohttp.ClientResponse):
    """A response whose connection is not used again after a redirect or an error.

    Many servers close a connection after an error without announcing it. A call on such a connection would fail in a
    way that leaves open whether the trainer had the request.
    """

    async def start(self, connection: Connection) -> "ClosingResponse":
        """Reads the reply's head, then marks the connection for closing where the status asks for it."""
        protocol = connection.protocol
        await super().start(connection)
        if self.status >= httpx.codes.MULTIPLE_CHOICES and protocol is not None:
            protocol.force_close()
            if self.connection is None:
                # The whole body arrived with the head, so the connection is back in the pool already.
                protocol.close()
        return self
