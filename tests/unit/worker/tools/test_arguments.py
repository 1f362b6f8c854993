"""Arguments of any length are parsed, and the event loop goes on meanwhile."""

import asyncio
import json
import threading

import pytest

from rolloutpool_worker.tools.arguments import PARSED_ON_LOOP, parse_arguments


async def test_the_loop_goes_on_while_a_long_text_is_parsed() -> None:
    """The parser in C would hold the interpreter's lock, in a thread as well."""
    text = json.dumps([0] * 500_000)
    parsing = asyncio.create_task(parse_arguments(text))
    steps = 0
    while not parsing.done():
        await asyncio.sleep(0)
        steps += 1
    assert parsing.result() == [0] * 500_000
    assert steps > 10


async def test_long_texts_follow_each_other_in_one_thread() -> None:
    texts = [json.dumps({"a": "x" * PARSED_ON_LOOP, "n": n}) for n in range(20)]
    parsed = await asyncio.gather(*map(parse_arguments, texts))
    assert [one["n"] for one in parsed] == list(range(20))
    assert sum(thread.name.startswith("tool-arguments") for thread in threading.enumerate()) == 1
    assert await parse_arguments('{"a": 1}') == {"a": 1}


@pytest.mark.parametrize("text", ["[" * PARSED_ON_LOOP * 2, '{"a":' * PARSED_ON_LOOP])
async def test_what_is_nested_too_deeply_is_refused(text: str) -> None:
    with pytest.raises(RecursionError):
        await parse_arguments(text)
