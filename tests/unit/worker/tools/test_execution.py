"""Every way in which a call can go becomes one tool message, in call order."""

import asyncio
from typing import Any

import pytest
from tests.support.tools import tool_host

from rolloutpool_common.errors import EnvironmentFault, ToolFault, TooManyToolCalls
from rolloutpool_common.outcomes import Boundary, Category, FailureKind
from rolloutpool_common.process.metrics import take_rows
from rolloutpool_common.protocol.messages import FunctionCall, ToolCall
from rolloutpool_common.protocol.options import OnToolError
from rolloutpool_common.protocol.tools import ToolDefinition, ToolFunction
from rolloutpool_worker.tools import Tool, ToolContext, ToolFailed, ToolRunner
from rolloutpool_worker.tools.calculator import ADD
from rolloutpool_worker.tools.limits import LONGEST_FAULT


def made(name: str, run: Any, **parameters: Any) -> Tool:
    return Tool(ToolDefinition(function=ToolFunction(name=name, parameters=parameters or {"type": "object"})), run)


async def texts(calls: list[tuple[str, Any]], *tools: Tool, lenient: bool = False, timeout: float = 5.0) -> list[str]:
    host = tool_host(seconds=timeout, calls=4, arguments=200_000, result=10_000)
    runner = ToolRunner({tool.name: tool for tool in (ADD, *tools)}, lenient=lenient, host=host)
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


async def test_a_tool_that_takes_too_long_is_cut_off() -> None:
    async def never(_: ToolContext) -> object:
        return await asyncio.Event().wait()

    assert await texts([("never", {})], made("never", never), timeout=0.01) == [
        "Error: Tool execution timed out after 0.01 s"
    ]


@pytest.mark.parametrize("lenient", [True, False])
@pytest.mark.parametrize("arguments", ["[" * 100_000, '{"a":' * 100_000, '{"a": "\\ud800", "b": "\\udfff"}', "{" * 9])
async def test_hostile_arguments_are_answered(lenient: bool, arguments: str) -> None:
    (text,) = await texts([("add", arguments)], lenient=lenient)
    assert text.startswith("Error: Invalid ") or (lenient and text == "\\ud800\\udfff")


async def test_a_broken_schema_is_the_tool_s_fault() -> None:
    """The result warns of it: each call of such a tool is refused, and the policy can't help it."""

    async def run(_: ToolContext) -> str:
        return "ran"

    tool = made("broken", run, type="object", properties={"a": {"type": 5}})
    runner = ToolRunner({"broken": tool}, lenient=False, host=tool_host())
    call = ToolCall(id="c", function=FunctionCall(name="broken", arguments={"a": 1}))
    (message,) = await runner.run([call], [ToolContext("b-0", "r", 1, "c", {})])
    assert message["content"] == "Error: Invalid arguments for broken: the tool's own schema is broken"
    assert runner.take_warnings() == ("tool_failed:broken",)


async def test_a_number_that_no_check_can_take_is_the_policy_s_fault() -> None:
    async def run(_: ToolContext, a: float) -> str:
        return "ran"

    tool = made("half", run, type="object", properties={"a": {"multipleOf": 0.5}})
    (text,) = await texts([("half", '{"a": 1' + "0" * 400 + "}")], tool)
    assert text == "Error: Invalid arguments for half: a number is too large"


async def test_without_leniency_the_schema_decides() -> None:
    assert await texts([("add", {"a": 1, "b": "2"})]) == [
        "Error: Invalid arguments for add: b: '2' is not of type 'number'"
    ]
    assert await texts([("add", {"a": "1", "b": "2"})], lenient=True) == ["12"]


def raising(error: type[BaseException]) -> Any:
    async def end(_: ToolContext) -> object:
        await asyncio.sleep(0)
        raise error("the end")

    return end


class Unwritable:
    """A result that ends the process of whoever writes it."""

    def __str__(self) -> str:
        raise SystemExit


async def unwritable(_: ToolContext) -> object:
    return Unwritable()


async def cancels_itself(_: ToolContext) -> object:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    return await asyncio.Event().wait()


FAILING: dict[str, Any] = {
    "raises at once": lambda _: 1 / 0,
    "is not async": lambda _: "text",
    "returns what cannot be written": unwritable,
    "cancels its task": cancels_itself,
    **{
        error.__name__: raising(error)
        for error in (TimeoutError, SystemExit, KeyboardInterrupt, asyncio.CancelledError, GeneratorExit, BaseException)
    },
}


@pytest.mark.parametrize("also", [0, 1], ids=["alone", "beside another call"])
@pytest.mark.parametrize("run", FAILING.values(), ids=FAILING)
async def test_whatever_a_tool_does_is_a_message(run: Any, also: int) -> None:
    calls: list[tuple[str, Any]] = [("odd", {}), *[("add", {"a": 1, "b": 2})] * also]
    assert await texts(calls, made("odd", run)) == ["Error: Tool execution failed", *["3"] * also]


class Broken(Exception):
    """A plug-in's own error."""


async def buggy(_: ToolContext, n: int = 0) -> object:
    """Has a bug."""
    raise Broken(f"no {n} in the index")


async def long(_: ToolContext) -> object:
    """Says much."""
    return "x" * 20_000


async def picky(_: ToolContext) -> object:
    """Refuses."""
    raise ToolFailed("closed")


async def slow(_: ToolContext) -> object:
    """Does not answer."""
    return await asyncio.Event().wait()


MISBEHAVING = [made(run.__name__, run) for run in (buggy, long, picky, slow)]


def runner_of(**options: Any) -> ToolRunner:
    host = tool_host(seconds=0.2, calls=8, arguments=200_000, result=10_000)
    return ToolRunner({tool.name: tool for tool in MISBEHAVING}, lenient=False, host=host, **options)


async def run(runner: ToolRunner, *names: str) -> list[dict[str, Any]]:
    asked = [ToolCall(id=f"c{i}", function=FunctionCall(name=name, arguments={})) for i, name in enumerate(names)]
    return await runner.run(asked, [ToolContext("b-0", "r", 1, call.id, {}) for call in asked])


async def test_a_tool_that_fails_or_says_too_much_is_named_in_the_result_and_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    runner = runner_of()
    await run(runner, "buggy", "long", "picky", "slow", "buggy", "nowhere")
    assert runner.take_warnings() == ("tool_failed:buggy", "tool_failed:slow", "tool_result_cut:long")
    assert runner.take_warnings() == ()
    errors = [(time.name, time.ok, time.error) for time in runner.take_times()]
    assert errors == [
        ("buggy", False, "Broken"),
        ("long", True, None),
        ("picky", False, None),
        ("slow", False, "TimeoutError"),
        ("buggy", False, "Broken"),
        ("nowhere", False, None),
    ]
    logged = [vars(record)["event_fields"] for record in caplog.records if record.message == "plug-in failed"]
    # Once for two calls, and with the traceback.
    assert [fields["plugin"] for fields in logged] == ["tool buggy", "tool slow"]
    assert "Broken: no 0 in the index" in logged[0]["exception"]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("buggy", r"tool buggy failed with Broken: no 0 in the index \(test_execution\.py:\d+ in buggy\)"),
        ("slow", r"tool slow failed with TimeoutError: no answer within 0\.2 s"),
    ],
)
async def test_a_rollout_may_say_that_a_tools_error_is_no_message(name: str, why: str) -> None:
    with pytest.raises(ToolFault, match=f"^{why}$") as raised:
        await run(runner_of(on_error=OnToolError.FAIL), "picky", name)
    failure = raised.value.failure()
    assert (failure.kind, failure.boundary, failure.category) == (
        FailureKind.INFRA,
        Boundary.TOOL,
        Category.TOOL_ERROR,
    )
    assert failure.retryable


async def test_a_refusal_and_what_the_policy_did_wrong_are_messages_in_any_case() -> None:
    messages = await run(runner_of(on_error=OnToolError.FAIL), "picky", "nowhere", "long")
    assert [message["content"][:22] for message in messages] == ["Error: closed", "Error: Unknown functio", "x" * 22]


@pytest.mark.parametrize(("count", "obeys"), [(1, True), (1, False), (2, False)])
async def test_a_cancelled_rollout_cancels_its_tools_and_none_can_swallow_it(count: int, obeys: bool) -> None:
    running, stopped = asyncio.Event(), 0

    async def hang(_: ToolContext) -> object:
        nonlocal stopped
        running.set()
        try:
            return await asyncio.Event().wait()
        except asyncio.CancelledError:
            stopped += 1
            if obeys:
                raise
            return "I go on"

    task = asyncio.create_task(texts([("hang", {})] * count, made("hang", hang)))
    await running.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert stopped == count


async def test_too_many_calls_run_no_tool() -> None:
    ran = []

    async def run(_: ToolContext) -> str:
        ran.append(1)
        return "ran"

    assert await texts([("run", {})] * 4, made("run", run)) == ["ran"] * 4
    ran.clear()
    with pytest.raises(TooManyToolCalls, match=r"turn 1: the policy made 5 tool calls, and at most 4 are run"):
        await texts([("run", {})] * 5, made("run", run))
    assert ran == []


@pytest.mark.parametrize("lenient", [True, False])
async def test_a_long_result_is_cut_once_with_a_mark(lenient: bool) -> None:
    async def long(_: ToolContext, text: str, n: int) -> str:
        return text * n

    async def shown(text: str, n: int) -> str:
        return (await texts([("long", {"text": text, "n": n})], made("long", long), lenient=lenient))[0]

    assert await shown("x", 10_000) == "x" * 10_000
    assert await shown("x", 10_001) == "x" * 10_000 + "… [cut: 10000 of 10001 characters shown]"
    # The border of bytes is inside a character: that one is not shown.
    assert await shown("\u20ac", 4000) == "\u20ac" * 3333 + "… [cut: 3333 of 4000 characters shown]"
    assert await shown("\ud800", 10) == "\\ud800" * 10


@pytest.mark.parametrize("lenient", [True, False])
@pytest.mark.parametrize(
    "arguments",
    ['{"a": "' + "x" * 200_000 + '", "b": 1}', {"a": "x" * 200_001, "b": 1}, {"a": [[0] * 200_001], "b": 1}],
)
async def test_arguments_that_are_too_large_reach_no_tool(lenient: bool, arguments: Any) -> None:
    assert await texts([("add", arguments)], lenient=lenient) == [
        "Error: Invalid arguments for add: longer than 200000 characters; not run"
    ]


@pytest.mark.parametrize("lenient", [True, False])
@pytest.mark.parametrize(
    "arguments",
    [{"a": 1, "b": "x" * 150_000}, {"a": 1, "b": 1, "y" * 150_000: 1}, {"a": ["x" * 50_000, 5], "b": None}],
)
async def test_error_texts_quote_little(lenient: bool, arguments: Any) -> None:
    (text,) = await texts([("add", arguments)], lenient=lenient)
    assert text.startswith("Error: ")
    assert len(text) < LONGEST_FAULT + 200


async def test_calls_are_counted_under_the_names_of_tools_alone() -> None:
    take_rows()
    await texts([("add", {"a": 1, "b": 2}), ("add", {"a": "x"}), ("ignore\nall | rules", {}), ("x" * 256, {})])
    counts = {field: n for _, field, n in take_rows() if field.startswith("tool_call_") and "|sum" not in field}
    assert {tuple(field.split("|")[1:3]) for field in counts} == {("add", "ok"), ("add", "error"), ("unknown", "error")}
    assert sum(counts.values()) == 4


async def test_tools_that_a_task_has_named_are_counted_as_one() -> None:
    async def act(_: ToolContext) -> str:
        return "done"

    names = [f"tool_{number}" for number in range(4)]
    take_rows()
    await texts([(name, {}) for name in names], *(stateful(name, act) for name in names))
    counts = {field: n for _, field, n in take_rows() if field.startswith("tool_call_") and "|sum" not in field}
    assert {tuple(field.split("|")[1:3]) for field in counts} == {("session", "ok")}
    assert sum(counts.values()) == 4


def stateful(name: str, run: Any) -> Tool:
    definition = ToolDefinition(function=ToolFunction(name=name, parameters={"type": "object"}))
    return Tool(definition, run, stateful=True)


async def test_calls_of_a_session_run_in_order_beside_the_others() -> None:
    running: list[str] = []
    other = asyncio.Event()

    async def act(_: ToolContext, who: str) -> str:
        running.append(who)
        assert len(running) == 1
        # Long arguments are checked in a thread, and short ones that follow are not; the order is the policy's.
        await other.wait()
        await asyncio.sleep(0.001)
        running.remove(who)
        return who[:1]

    async def meet(_: ToolContext) -> str:
        other.set()
        return "met"

    calls = [
        ("act", {"who": "a" * 50_000}),
        ("meet", {}),
        ("act", {"who": "b"}),
        ("unknown", {}),
        ("act", {"who": "c"}),
    ]
    assert (await texts(calls[:3] + calls[4:], stateful("act", act), made("meet", meet))) == ["a", "met", "b", "c"]


async def test_the_failure_of_a_session_is_the_rollouts_and_that_of_a_tool_is_not() -> None:
    begun: list[str] = []

    async def act(_: ToolContext, who: str) -> str:
        begun.append(who)
        raise EnvironmentFault(who)

    with pytest.raises(EnvironmentFault, match="first"):
        await texts([("act", {"who": "first"}), ("act", {"who": "second"})], stateful("act", act))
    assert begun == ["first", "second"]


async def test_a_session_limits_its_time_itself() -> None:
    async def slow(_: ToolContext) -> str:
        await asyncio.sleep(0.05)
        return "there"

    assert await texts([("slow", {})], stateful("slow", slow), timeout=0.01) == ["there"]
