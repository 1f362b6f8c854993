"""A proxy that takes TLS and passes on what is in it, as in front of many managed servers."""

import asyncio
import contextlib
import ssl
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def tls_proxy(port: int, target: int, context: ssl.SSLContext) -> Iterator[list[bytes]]:
    """Passes on what comes over TLS, and the end of a connection, until the block ends.

    Yields:
        What clients have said, grows meanwhile.
    """
    heard: list[bytes] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far = await asyncio.open_connection("127.0.0.1", target)
        ways = [asyncio.create_task(carry(reader, far, heard)), asyncio.create_task(carry(far_reader, writer, []))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            for end in (writer, far):
                end.transport.abort()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, copy: list[bytes]) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                copy.append(data)
                writer.write(data)

    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(asyncio.start_server(accept, "127.0.0.1", port, ssl=context))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield heard
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        server.close()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0.1))
        loop.close()
