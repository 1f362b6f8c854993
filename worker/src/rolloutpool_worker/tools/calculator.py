"""The built-in tools: add, subtract, multiply, divide.

Clients of protocol v1 know these tools' texts and what they let pass: add("x", "y") is "xy". So they check nothing
themselves; for rollouts of the batch API, `execution.py` checks the arguments against the schema first.
"""

import asyncio
import random
from typing import Any

from rolloutpool_worker.tools.base import Tool, ToolContext, ToolFailed, tool

MOST_REPEATED = 1_000_000
"""Characters that multiply("x", n) or multiply(["x"], n) may make: gigabytes would end the worker."""

_delay_ms = (0.0, 0.0)


def set_delay(low_ms: float, high_ms: float) -> None:
    """Makes each call from now on wait a random time between the two, to imitate slow tools."""
    global _delay_ms  # noqa: PLW0603  one setting per process, read by plain functions
    _delay_ms = (low_ms, high_ms)


async def _pause() -> None:
    if _delay_ms[1] > 0:
        await asyncio.sleep(random.uniform(*_delay_ms) / 1000)


def _parameters(a: str, b: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"a": {"type": "number", "description": a}, "b": {"type": "number", "description": b}},
        "required": ["a", "b"],
    }


@tool("add", "Add two numbers", _parameters("First number", "Second number"))
async def add(_: ToolContext, a: Any, b: Any) -> object:
    """Returns a + b."""
    await _pause()
    return a + b


@tool("subtract", "Subtract two numbers", _parameters("First number", "Second number to subtract from first"))
async def subtract(_: ToolContext, a: Any, b: Any) -> object:
    """Returns a - b."""
    await _pause()
    return a - b


@tool("multiply", "Multiply two numbers", _parameters("First number", "Second number"))
async def multiply(_: ToolContext, a: Any, b: Any) -> object:
    """Returns a * b."""
    await _pause()
    for sequence, times in ((a, b), (b, a)):
        if (
            isinstance(sequence, str | list)
            and isinstance(times, int)
            and _text_length(sequence) * times > MOST_REPEATED
        ):
            raise OverflowError
    return a * b


def _text_length(sequence: str | list[Any]) -> int:
    """How long the sequence is where a tool message shows it. A list is as long as its text, not as its count."""
    return len(sequence) if isinstance(sequence, str) or not sequence else len(str(sequence))


@tool("divide", "Divide two numbers", _parameters("Numerator", "Denominator (cannot be zero)"))
async def divide(_: ToolContext, a: Any, b: Any) -> object:
    """Returns a / b."""
    await _pause()
    if b == 0:
        raise ToolFailed("Division by zero")
    return a / b


ADD: Tool = add
SUBTRACT: Tool = subtract
MULTIPLY: Tool = multiply
DIVIDE: Tool = divide
