"""CPU-bound work in a thread, when it is long enough to hold up the worker's event loop."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

__all__ = ["OFF_LOOP", "characters", "off_loop"]

T = TypeVar("T")

OFF_LOOP = 16_000
"""Characters or ids. Tokenising more takes milliseconds."""


async def off_loop(size: int, function: Callable[..., T], *args: Any) -> T:
    """What the function returns; it runs in a thread if `size` (characters or ids) is larger than `OFF_LOOP`."""
    return await asyncio.to_thread(function, *args) if size > OFF_LOOP else function(*args)


def characters(messages: Sequence[dict[str, Any]]) -> int:
    """The length of the messages' texts."""
    return sum(len(message["content"]) for message in messages if isinstance(message["content"], str))
