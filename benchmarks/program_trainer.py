"""A trainer for any program: it answers every turn with the same tool call, and reads nothing of what it is asked.

    python -m benchmarks.program_trainer TOKENIZER

It answers at once under `/v1`, and after so many ms under `/after/MS/v1`. Under `/every/MS/v1` it gives one answer
every so many ms, in the order it was asked: with the same pause for each, rollouts that begin together would always ask
together, and a crowd costs less.

It gives no prompt ids, so the pool renders them (`allow_unverified`). It costs next to nothing, so what is measured
beside it is the pool.
"""

import asyncio
import re
import sys
import time

import orjson

from rolloutpool_common.rendering import load_tokenizer

_LATE, _PACED = re.compile(rb"POST /after/(\d+)/"), re.compile(rb"POST /every/(\d+)/")
TEXT = '<tool_call>\n{"name": "add", "arguments": {"a": 15, "b": 23}}\n</tool_call>'
CALL = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 15, "b": 23}'}}


def reply_of(tokenizer: str) -> bytes:
    """Makes the one reply, with its head."""
    loaded = load_tokenizer(tokenizer)
    assert loaded.close_id is not None
    ids = [*loaded.encode(TEXT), loaded.close_id]
    message = {"role": "assistant", "content": "", "tool_calls": [CALL], "tool_call_id": None}
    body = orjson.dumps(
        {
            "id": "c",
            "object": "chat.completion",
            "created": 1,
            "model": "policy",
            "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}],
            "token_ids": ids,
            "logprobs": [-0.5] * len(ids),
            "usage": {"prompt_tokens": 1, "completion_tokens": len(ids), "total_tokens": 1 + len(ids)},
        }
    )
    head = (
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nx-idempotent-turns: true\r\nx-keeps-token-ids: true\r\n"
    )
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


async def main(tokenizer: str) -> None:
    """Serves until it is ended; prints its port."""
    reply = reply_of(tokenizer)
    free = 0.0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal free
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                lines = head.lower().split(b"\r\n")
                length = next((int(line[15:]) for line in lines if line.startswith(b"content-length:")), 0)
                await reader.readexactly(length)
                if (paced := _PACED.match(head)) is not None:
                    now = time.perf_counter()
                    free = max(now, free + int(paced[1]) / 1000)
                    await asyncio.sleep(free - now)
                elif (late := _LATE.match(head)) is not None:
                    await asyncio.sleep(int(late[1]) / 1000)
                writer.write(reply)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=2**20)
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
