"""The built-in tools: add, subtract, multiply, divide.

Protocol v1's clients know their texts and their leniency (add("x", "y") is "xy"); schema validation, which the batch
API does before a tool runs, is not done here.
"""

import asyncio
import random
from typing import Any

from rolloutpool_worker.tools.base import Tool, ToolContext, ToolFailed, tool

__all__ = ["ADD", "DIVIDE", "MULTIPLY", "SUBTRACT", "set_delay"]

MOST_REPEATED = 1_000_000
"""Characters that multiply("x", n) may make: a gigabyte of them would take every other rollout along."""

_delay_ms = (0.0, 0.0)


def set_delay(low_ms: float, high_ms: float) -> None:
    """From now on each call takes a random time between the two, as slow tools would."""
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
    """Their sum."""
    await _pause()
    return a + b


@tool("subtract", "Subtract two numbers", _parameters("First number", "Second number to subtract from first"))
async def subtract(_: ToolContext, a: Any, b: Any) -> object:
    """Their difference."""
    await _pause()
    return a - b


@tool("multiply", "Multiply two numbers", _parameters("First number", "Second number"))
async def multiply(_: ToolContext, a: Any, b: Any) -> object:
    """Their product."""
    await _pause()
    for sequence, times in ((a, b), (b, a)):
        if isinstance(sequence, str | list) and isinstance(times, int) and len(sequence) * times > MOST_REPEATED:
            raise OverflowError
    return a * b


@tool("divide", "Divide two numbers", _parameters("Numerator", "Denominator (cannot be zero)"))
async def divide(_: ToolContext, a: Any, b: Any) -> object:
    """Their quotient."""
    await _pause()
    if b == 0:
        raise ToolFailed("Division by zero")
    return a / b


ADD: Tool = add
SUBTRACT: Tool = subtract
MULTIPLY: Tool = multiply
DIVIDE: Tool = divide
