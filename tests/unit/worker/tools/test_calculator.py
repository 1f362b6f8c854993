"""The calculator's leniency is Python's, its delay is the setting's, and no call can fill the memory."""

import pytest

from rolloutpool_worker.tools import TOOLS, ToolContext, ToolFailed
from rolloutpool_worker.tools.calculator import ADD, DIVIDE, MOST_REPEATED, MULTIPLY, SUBTRACT

CONTEXT = ToolContext("b-0", "r", 1, "c", {})


async def test_numbers_keep_their_kind() -> None:
    assert [str(await tool.run(CONTEXT, a=6, b=3)) for tool in (ADD, SUBTRACT, MULTIPLY, DIVIDE)] == [
        "9",
        "3",
        "18",
        "2.0",
    ]
    assert str(await ADD.run(CONTEXT, a=5.0, b=3)) == "8.0"
    assert await ADD.run(CONTEXT, a="x", b="y") == "xy"


@pytest.mark.parametrize("zero", [0, 0.0, False])
async def test_nothing_is_divided_by_zero(zero: float) -> None:
    with pytest.raises(ToolFailed, match="Division by zero"):
        await DIVIDE.run(CONTEXT, a=1, b=zero)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("x", 10**12),
        (10**12, "x"),
        ([1], 10**12),
        ("xy", MOST_REPEATED),
        # Few elements and a long text: 100 MB.
        (["x" * 100], MOST_REPEATED),
        (MOST_REPEATED, [[["x" * 100]]]),
    ],
)
async def test_repetition_is_bounded(a: object, b: object) -> None:
    with pytest.raises(OverflowError):
        await MULTIPLY.run(CONTEXT, a=a, b=b)


async def test_small_repetitions_are_python_s() -> None:
    assert await MULTIPLY.run(CONTEXT, a="xy", b=3) == "xyxyxy"
    assert await MULTIPLY.run(CONTEXT, a="x", b=-(10**12)) == ""
    assert await MULTIPLY.run(CONTEXT, a=["x", 1], b=2) == ["x", 1, "x", 1]
    assert await MULTIPLY.run(CONTEXT, a=[], b=10**12) == []
    assert await MULTIPLY.run(CONTEXT, a=10**300, b=10**300) == 10**600


def test_the_four_are_described_as_the_protocol_does() -> None:
    described = {
        tool.name: (
            tool.definition.function.description,
            tool.definition.function.parameters["properties"]["a"]["description"],
            tool.definition.function.parameters["properties"]["b"]["description"],
        )
        for tool in (ADD, SUBTRACT, MULTIPLY, DIVIDE)
    }
    assert described == {
        "add": ("Add two numbers", "First number", "Second number"),
        "subtract": ("Subtract two numbers", "First number", "Second number to subtract from first"),
        "multiply": ("Multiply two numbers", "First number", "Second number"),
        "divide": ("Divide two numbers", "Numerator", "Denominator (cannot be zero)"),
    }
    assert TOOLS.names()[:4] == list(described)
    for tool in (ADD, SUBTRACT, MULTIPLY, DIVIDE):
        assert tool.definition.function.parameters["required"] == ["a", "b"]
