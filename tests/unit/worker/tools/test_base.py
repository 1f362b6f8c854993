"""What a tool is: its definition, the schema of its arguments, and for whom a call runs."""

from typing import Any

import pytest

from rolloutpool_worker.plugins import NameTaken, PluginBroken, Registry
from rolloutpool_worker.tools import base
from rolloutpool_worker.tools.base import Isolated, Tool, ToolContext, answer_call, tool

NUMBER = {"type": "object", "properties": {"n": {"type": "number"}}, "required": ["n"]}


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch) -> Registry[Tool]:
    """An empty register of tools, in the place of the process's."""
    registry: Registry[Tool] = Registry("unit.tools")
    monkeypatch.setattr(base, "TOOLS", registry)
    return registry


async def double(_: ToolContext, n: float) -> object:
    return 2 * n


@pytest.mark.usefixtures("tools")
def test_a_name_is_taken_once() -> None:
    tool("unit.taken", "First", NUMBER)(double)
    with pytest.raises(NameTaken, match=r"unit\.taken"):
        tool("unit.taken", "Second", NUMBER)(double)


def test_the_idempotency_key_names_this_very_call() -> None:
    keys = {ToolContext("b-0", "r", turn, call, {}).idempotency_key for turn in (1, 2) for call in ("a", "b")}
    assert keys == {"b-0/1/a", "b-0/1/b", "b-0/2/a", "b-0/2/b"}


def test_an_isolated_tool_must_be_found_by_a_child_process(tools: Registry[Tool]) -> None:
    made = tool("unit.isolated", "Doubles", NUMBER, isolated=Isolated(memory_mb=64))(double)
    assert made.isolated == Isolated(memory_mb=64, seconds=None)
    assert tool("unit.on_the_loop", "Doubles", NUMBER)(double).isolated is None

    async def inside(_: ToolContext) -> object:
        return None

    with pytest.raises(PluginBroken, match="must be a function of a module"):
        tool("unit.inside", "Cannot be found", NUMBER, isolated=Isolated())(inside)
    assert tools.names() == ["unit.isolated", "unit.on_the_loop"]


TEXT = {"type": "text", "text": "38"}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
NO_IMAGE = "Error: the tool returned content[{}]: type image_url; only text is supported"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("38", "38"),
        ([1, 2], "[1, 2]"),
        ([{"type": "file", "path": "a"}], "[{'type': 'file', 'path': 'a'}]"),
        ([TEXT, TEXT], "3838"),
        (TEXT, "38"),
        ([TEXT, IMAGE], NO_IMAGE.format(1)),
        (IMAGE, NO_IMAGE.format(0)),
        ({"type": "image", "data": "AAAA"}, NO_IMAGE.format(0).replace("image_url", "image")),
    ],
)
async def test_what_the_policy_reads_of_a_result(value: Any, text: str) -> None:
    async def run(_: ToolContext) -> object:
        return value

    assert await answer_call("look", run, ToolContext("b-0", "r", 1, "c", {}), {}) == text
