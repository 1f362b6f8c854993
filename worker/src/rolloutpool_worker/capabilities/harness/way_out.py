"""Runs in a sandbox that has no network, before its program: the program's way to the socket of a passage.

Its source is given to the sandbox's Python (`passage`), which may see nothing of ours; so it imports nothing of ours.

    python -c SOURCE /run/door 9100 program argument …
"""

import asyncio
import os
import socket
import sys

PART = 65536


async def join(
    one: "tuple[asyncio.StreamReader, asyncio.StreamWriter]", other: "tuple[asyncio.StreamReader, asyncio.StreamWriter]"
) -> None:
    """Gives each side what the other one says, until both have said all, or one is gone."""
    ways = [asyncio.ensure_future(_give(one[0], other[1])), asyncio.ensure_future(_give(other[0], one[1]))]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        writers = one[1], other[1]
        for writer in writers:
            writer.close()
        await asyncio.gather(*(writer.wait_closed() for writer in writers), return_exceptions=True)


async def _give(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while part := await reader.read(PART):
        writer.write(part)
        await writer.drain()
    writer.write_eof()


async def _pass_on(listener: socket.socket, door: str) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there = await asyncio.open_unix_connection(door)
        except OSError:
            writer.close()
            return
        await join((reader, writer), there)

    server = await asyncio.start_server(serve, sock=listener)
    await server.serve_forever()


def main() -> None:
    """Listens, and then becomes the program; its child passes on what comes."""
    door, port, *command = sys.argv[1:]
    listener = socket.create_server(("127.0.0.1", int(port)), backlog=128)
    if os.fork():
        os.execv(command[0], command)
    # What it may have to say is no part of the program's output.
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    asyncio.run(_pass_on(listener, door))


if __name__ == "__main__":
    main()
