"""Says what Redis answers, read by name: the fields of a script's answer, and the clock.

A script with several answers returns one flat list, because Redis has no other form for it: {'known', 1, 'epoch', 3}.
`named` makes {"known": 1, "epoch": 3} of it. Texts stay bytes, because most of them are parsed or compared as they are.
"""

from typing import Any


def named(answer: list[Any]) -> dict[str, Any]:
    """Reads the flat list {name, value, name, value, ...} of a script."""
    return {name.decode(): value for name, value in zip(answer[::2], answer[1::2], strict=True)}


def to_ms(time: tuple[int, int]) -> float:
    """Converts the answer of TIME, seconds and microseconds, to milliseconds since 1970."""
    seconds, micros = time
    return seconds * 1000 + micros / 1000


async def now_ms(redis: Any) -> float:
    """Asks Redis for its clock, in milliseconds since 1970. Every time that the store keeps is of this clock."""
    return to_ms(await redis.time())
