"""Every way in which a call can go becomes one tool message, in call order."""

import asyncio
from typing import Any

import pytest

from rolloutpool_common.protocol.messages import FunctionCall, ToolCall
from rolloutpool_common.protocol.tools import ToolDefinition, ToolFunction
from rolloutpool_worker.tools import Tool, ToolContext, ToolRunner
from rolloutpool_worker.tools.calculator import ADD


def made(name: str, run: Any, **parameters: Any) -> Tool:
    return Tool(ToolDefinition(function=ToolFunction(name=name, parameters=parameters or {"type": "object"})), run)


async def texts(calls: list[tuple[str, Any]], *tools: Tool, lenient: bool = False, timeout: float = 5.0) -> list[str]:
    runner = ToolRunner({tool.name: tool for tool in (ADD, *tools)}, lenient=lenient, timeout=timeout)
    asked = [
        ToolCall(id=f"c{i}", function=FunctionCall(name=name, arguments=arguments))
        for i, (name, arguments) in enumerate(calls)
    ]
    contexts = [ToolContext("b-0", "r", 1, call.id, {}) for call in asked]
    messages = await runner.run(asked, contexts)
    assert [message["tool_call_id"] for message in messages] == [call.id for call in asked]
    for message, call in zip(messages, asked, strict=True):
        assert list(message) == ["role", "content", "tool_calls", "tool_call_id", *([] if lenient else ["name"])]
        assert message.get("name", call.function.name) == call.function.name
        message["content"].encode()
    return [message["content"] for message in messages]


async def test_no_calls_no_messages() -> None:
    assert await texts([]) == []


async def test_order_is_the_calls_order_and_all_run_at_once() -> None:
    both = asyncio.Barrier(2)

    async def meet(_: ToolContext, who: str) -> str:
        await both.wait()
        return who

    assert await texts([("meet", {"who": "a"}), ("meet", {"who": "b"})], made("meet", meet)) == ["a", "b"]


@pytest.mark.parametrize(
    "run", [pytest.param(lambda _: 1 / 0, id="raises"), pytest.param(lambda _: "text", id="is not async")]
)
async def test_tools_that_are_no_tools(run: Any) -> None:
    assert await texts([("odd", {})], made("odd", run)) == ["Error: Tool execution failed"]


async def test_a_tool_s_own_time_out_is_a_failure_like_others() -> None:
    async def late(_: ToolContext) -> str:
        raise TimeoutError

    async def never(_: ToolContext) -> object:
        return await asyncio.Event().wait()

    assert await texts([("late", {})], made("late", late)) == ["Error: Tool execution failed"]
    assert await texts([("never", {})], made("never", never), timeout=0.01) == [
        "Error: Tool execution timed out after 0.01 s"
    ]


async def test_a_result_whose_text_fails_is_a_failure() -> None:
    class Mute:
        def __str__(self) -> str:
            raise ValueError

    async def mute(_: ToolContext) -> object:
        return Mute()

    assert await texts([("mute", {})], made("mute", mute)) == ["Error: Tool execution failed"]


@pytest.mark.parametrize("lenient", [True, False])
@pytest.mark.parametrize("arguments", ["[" * 100_000, '{"a":' * 100_000, '{"a": "\\ud800", "b": "\\udfff"}', "{" * 9])
async def test_hostile_arguments_are_answered(lenient: bool, arguments: str) -> None:
    (text,) = await texts([("add", arguments)], lenient=lenient)
    assert text.startswith("Error: Invalid ") or (lenient and text == "\\ud800\\udfff")


async def test_a_broken_schema_is_the_tool_s_fault() -> None:
    async def run(_: ToolContext) -> str:
        return "ran"

    (text,) = await texts([("broken", {"a": 1})], made("broken", run, type="object", properties={"a": {"type": 5}}))
    assert text.startswith("Error: ")


async def test_without_leniency_the_schema_decides() -> None:
    assert await texts([("add", {"a": 1, "b": "2"})]) == [
        "Error: Invalid arguments for add: b: '2' is not of type 'number'"
    ]
    assert await texts([("add", {"a": "1", "b": "2"})], lenient=True) == ["12"]


async def test_a_cancelled_rollout_cancels_its_tools() -> None:
    stopped = asyncio.Event()
    running = asyncio.Event()

    async def hang(_: ToolContext) -> object:
        running.set()
        try:
            return await asyncio.Event().wait()
        finally:
            stopped.set()

    task = asyncio.create_task(texts([("hang", {})], made("hang", hang)))
    await running.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert stopped.is_set()
