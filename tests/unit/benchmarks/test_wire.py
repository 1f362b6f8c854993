"""The least of HTTP: messages are cut where they end, however they arrive."""

import asyncio

import pytest
from benchmarks.wire import Messages, connect, head

MESSAGE = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX: y\r\n\r\nhello"


@pytest.mark.parametrize("size", [1, 7, len(MESSAGE), 2 * len(MESSAGE)])
def test_messages_are_cut_where_they_end(size: int) -> None:
    messages, found = Messages(), []
    for _ in range(2):
        for start in range(0, len(MESSAGE), size):
            message = messages.feed(MESSAGE[start : start + size])
            if message is not None:
                found.append(message)
    assert found == [(MESSAGE[: -len(b"\r\nhello")], b"hello")] * 2


async def test_a_request_gets_its_answer_and_a_refusal_raises() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers = iter((MESSAGE, MESSAGE.replace(b"200 OK", b"500 No")))
        for answer in answers:
            await reader.readuntil(b"\r\n\r\n")
            assert await reader.readexactly(2) == b"{}"
            writer.write(answer)
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        client = await connect(port)
        assert await client.post(head(port, "/"), b"{}") == b"hello"
        with pytest.raises(RuntimeError, match="500 No"):
            await client.post(head(port, "/"), b"{}")
        client.close()
