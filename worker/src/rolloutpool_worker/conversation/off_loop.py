"""CPU-bound work in a thread, when it is long enough to hold up the worker's event loop."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from rolloutpool_worker.tools.limits import size_of

T = TypeVar("T")

OFF_LOOP = 16_000
"""Characters or ids. Tokenising more takes milliseconds."""
MESSAGE = 500
"""The characters that one message, or one tool call in it, counts for. Templates run code for each: 0.1 ms, and several
times that when a shape is rendered for the first time. Tokenising 500 characters takes 0.3 ms."""


async def off_loop(size: int, function: Callable[..., T], *args: Any) -> T:
    """Calls a function, in a thread if it would take long."""
    return await asyncio.to_thread(function, *args) if size > OFF_LOOP else function(*args)


async def change_off_loop(size: int, function: Callable[..., T], *args: Any) -> T:
    """As `off_loop`, for a function that changes what others read: a cancellation waits for its end.

    Without that, a cancelled rollout's result would be made while a thread still writes its ledger.
    """
    if size <= OFF_LOOP:
        return function(*args)
    work = asyncio.ensure_future(asyncio.to_thread(function, *args))
    try:
        return await asyncio.shield(work)
    finally:
        # Only after a cancellation is it not done here. A second one must not end the wait either.
        while not work.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([work])


def rendering_size(messages: Sequence[dict[str, Any]]) -> int:
    """What rendering the messages costs, in characters: their texts, and `MESSAGE` for each message and tool call."""
    size = MESSAGE * len(messages)
    for message in messages:
        content = message["content"]
        if isinstance(content, str):
            size += len(content)
        elif content:
            size += sum(len(part["text"]) for part in content if isinstance(part.get("text"), str))
        for call in message.get("tool_calls") or ():
            # No more than `OFF_LOOP` is counted: from there on the answer is a thread in any case.
            size += MESSAGE + size_of(call["function"]["arguments"], at_most=OFF_LOOP)
    return size
