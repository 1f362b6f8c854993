"""Schemas from type hints and docstrings: what the policy is shown, what the function gets, what is refused."""

import datetime
from collections.abc import Awaitable
from enum import StrEnum
from typing import Annotated, Any, Literal

import pytest
from jsonschema import Draft202012Validator
from pydantic import BaseModel, Field
from tests.support.tools import tool_host

from rolloutpool_common.protocol.messages import FunctionCall, ToolCall
from rolloutpool_worker.plugins import PluginBroken, Registry
from rolloutpool_worker.tools import Tool, ToolContext, ToolRunner, base, tool
from rolloutpool_worker.tools.schema import read_signature


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> Registry[Tool]:
    """A registry of its own."""
    own: Registry[Tool] = Registry("rolloutpool.tools")
    monkeypatch.setattr(base, "TOOLS", own)
    return own


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Place(BaseModel):
    """Somewhere."""

    city: str
    title: str | None = None


async def search(  # noqa: D417  not every argument need be described
    context: ToolContext,
    query: str,
    most: Annotated[int, Field(ge=1, le=50)] = 10,
    order: Literal["new", "old"] = "new",
    tags: list[str] | None = None,
) -> object:
    """Searches the web.

    It takes a while.

    Args:
        query: What to look for,
            in words.
        most (int): Results at the most.

    Returns:
        Titles: one a line.
    """
    return f"{query} {most} {order} {tags}"


def test_the_policy_is_shown_what_the_function_says(registry: Registry[Tool]) -> None:
    made = tool()(search)
    function = made.definition.function
    assert (function.name, function.description) == ("search", "Searches the web.\n\nIt takes a while.")
    assert function.parameters == {
        "type": "object",
        "properties": {
            "query": {"type": "string", "description": "What to look for, in words."},
            "most": {
                "type": "integer",
                "minimum": 1,
                "maximum": 50,
                "default": 10,
                "description": "Results at the most.",
            },
            "order": {"type": "string", "enum": ["new", "old"], "default": "new"},
            "tags": {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}], "default": None},
        },
        "required": ["query"],
        "additionalProperties": False,
    }
    Draft202012Validator.check_schema(function.parameters)
    assert registry.names() == ["search"]


async def run(made: Tool, arguments: Any, *, lenient: bool = False) -> str:
    runner = ToolRunner({made.name: made}, lenient=lenient, host=tool_host())
    call = ToolCall(id="c", function=FunctionCall(name=made.name, arguments=arguments))
    (message,) = await runner.run([call], [ToolContext("b-0", "r", 1, "c", {})])
    text: str = message["content"]
    return text


async def test_the_function_gets_values_of_the_types_that_it_names() -> None:
    @tool()
    async def travel(_: ToolContext, day: datetime.date, to: Place, colour: Colour, *, context: int = 3) -> object:
        """Travels."""
        assert isinstance(day, datetime.date)
        assert isinstance(to, Place)
        assert isinstance(colour, Colour)
        return f"{day:%d.%m.} {to.city} {to.title} {colour} {context}"

    shown = travel.definition.function.parameters
    # A property may be called as pydantic's titles are.
    assert set(shown["$defs"]["Place"]["properties"]) == {"city", "title"}
    given = {"day": "2026-11-22", "to": {"city": "Rome"}, "colour": "red", "context": 4}
    assert await run(travel, given) == "22.11. Rome None red 4"
    said = await run(travel, {**given, "day": "tomorrow"})
    assert said.startswith("Error: Invalid arguments for travel: day: ")
    assert (await run(travel, {**given, "colour": "green"})).startswith("Error: Invalid arguments for travel: ")
    assert (await run(travel, {**given, "more": 1})).startswith("Error: Invalid arguments for travel: ")
    # Without the check against the schema too.
    assert (await run(travel, {**given, "more": 1}, lenient=True)).startswith(
        "Error: Invalid arguments for travel: more: "
    )
    assert (await run(travel, {}, lenient=True)).startswith("Error: Invalid arguments for travel: day: Field required")


async def test_a_function_without_arguments_or_with_any() -> None:
    @tool()
    async def look(_: ToolContext) -> object:
        return "dark"

    @tool()
    async def note(_: ToolContext, what: Any, **more: Any) -> object:
        return f"{what} {more}"

    assert look.definition.function.model_dump() == {
        "name": "look",
        "description": "",
        "parameters": {"type": "object", "properties": {}, "additionalProperties": False},
    }
    assert await run(look, {}) == "dark"
    assert await run(note, {"what": [1], "n": 2}) == "[1] {'n': 2}"


async def test_what_is_given_stays_as_it_is() -> None:
    """An explicit schema gives the function the arguments as they are in JSON, as before."""
    schema = {"type": "object", "properties": {"day": {"type": "string"}}, "title": "kept"}

    @tool("when", parameters=schema)
    async def when(_: ToolContext, day: datetime.date) -> object:
        """Says when."""
        return type(day).__name__

    function = when.definition.function
    assert (function.name, function.description, function.parameters) == ("when", "Says when.", schema)
    assert await run(when, {"day": "2026-11-22"}) == "str"

    @tool("silent", "")
    async def loud(_: ToolContext, n: int) -> object:
        """Says much."""
        return n

    assert (loud.name, loud.definition.function.description) == ("silent", "")
    assert await run(loud, {"n": 1}) == "1"


async def _positional(_: ToolContext, a: int, /) -> object:
    return a


async def _many(_: ToolContext, *a: int) -> object:
    return a


async def _unknown(_: ToolContext, a: "Nowhere") -> object:  # type: ignore[name-defined]  # noqa: F821
    return a


async def _no_schema(_: ToolContext, a: ToolRunner) -> object:
    return a


async def _nothing() -> object:
    return None


@pytest.mark.parametrize("function", [_positional, _many, _unknown, _no_schema, _nothing])
def test_what_cannot_be_described_is_refused_when_it_is_declared(function: Any) -> None:
    with pytest.raises(PluginBroken, match=f"tool {function.__name__}: "):
        read_signature(function)


async def _contextless(query: str) -> object:
    return query


async def _contextless_list(queries: list[str]) -> object:
    return queries


@pytest.mark.parametrize("function", [_contextless, _contextless_list])
def test_a_function_without_a_context_is_refused(function: Any) -> None:
    """It would be given the context as its first argument, and the policy would read it."""
    with pytest.raises(PluginBroken, match="its first argument is the ToolContext, and it has 'quer"):
        read_signature(function)


def test_a_function_that_is_not_async_is_refused(registry: Registry[Tool]) -> None:
    """Each call would fail, and be a tool message to train on."""

    def plain(_: ToolContext, query: str) -> object:
        return query

    async def answer(_: ToolContext, query: str) -> object:
        return query

    def passed_on(context: ToolContext, query: str) -> Awaitable[object]:
        return answer(context, query)

    with pytest.raises(PluginBroken, match="tool plain: write `async def plain`"):
        tool()(plain)  # type: ignore[arg-type]
    with pytest.raises(PluginBroken, match="tool plain: write `async def plain`"):
        tool("p", "P", {"type": "object"})(plain)  # type: ignore[arg-type]
    assert registry.names() == []
    assert tool()(passed_on).name == "passed_on"


def test_a_decorator_without_brackets_is_refused() -> None:
    """It would register nothing, and nothing would say so."""
    with pytest.raises(PluginBroken, match=r"tool search: write `@tool\(\)`, with brackets"):
        tool(search)  # type: ignore[arg-type]
