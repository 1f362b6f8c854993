"""One session from its opening to its close: what it is given, what may be answered, and what breaks it."""

import asyncio
from contextlib import suppress
from typing import Any

import pytest
from tests.support.games import SEED, WRONG, GuessingGame
from tests.support.tools import tool_host

from rolloutpool_common.errors import EnvironmentFault, RequestFault
from rolloutpool_common.process.metrics import take_rows
from rolloutpool_common.protocol.environments import CrashEffect, EnvironmentChoice
from rolloutpool_common.protocol.messages import FunctionCall, ToolCall
from rolloutpool_common.protocol.tools import ToolDefinition, ToolFunction
from rolloutpool_worker import plugin_errors
from rolloutpool_worker.environments import (
    Environment,
    EnvironmentFull,
    EnvironmentHost,
    OpenedSession,
    SessionLife,
    SessionScore,
    StepAnswer,
)
from rolloutpool_worker.environments.opened import MOST_TOOLS, MOST_TOOLS_BYTES
from rolloutpool_worker.environments.session import (
    MOST_INFO_BYTES,
    MOST_SNAPSHOT_BYTES,
)
from rolloutpool_worker.tools import ToolContext, ToolRunner

SECONDS = 0.2


def life_of(
    environment: Environment | None = None,
    task: Any = None,
    *,
    attempt: int = 1,
    host: EnvironmentHost | None = None,
) -> SessionLife:
    choice = EnvironmentChoice(name="game", task=task, seed=SEED)
    # A host without sessions counts as false.
    host = EnvironmentHost(seconds=SECONDS, result_bytes=1000) if host is None else host
    return SessionLife(environment or GuessingGame(), choice, "b-0", attempt, host)


async def test_what_the_policy_reads_of_a_long_answer_is_what_a_next_session_is_compared_with() -> None:
    """It would be cut twice, and a restartable environment would seem to answer otherwise than before."""
    life = life_of(Answering("x" * 5000, opened=OpenedSession(1, tools=named("look"))))
    await life.open()
    runner = ToolRunner(life.tools, lenient=False, host=tool_host(result=1000))
    made = ToolCall(id="c", function=FunctionCall(name="look", arguments={}))
    (message,) = await runner.run([made], [ToolContext("b-0", "r", 1, "c", {})])
    assert life.take_warnings() == ("tool_result_cut:game",)
    assert life.take_warnings() == ()
    assert message["content"] == (await life.call("look", {}, place=0)).content
    await life.close()


@pytest.mark.parametrize(
    ("task", "error", "text"),
    [
        ({"open": "full"}, EnvironmentFull, "no room"),
        ({"open": "wrong task"}, RequestFault, "no such level"),
        ({"open": "fail"}, EnvironmentFault, r"environment game: open failed with OSError: .* \(games.py:"),
        ({"open": "hang"}, EnvironmentFault, "environment game: open did not answer in 0.2 s"),
    ],
)
async def test_an_opening_may_fail(task: Any, error: type[Exception], text: str) -> None:
    host = EnvironmentHost(seconds=SECONDS, result_bytes=1000)
    life = life_of(task=task, host=host)
    with pytest.raises(error, match=text):
        await life.open()
    await life.close()
    assert len(host) == 0
    assert not life.final


@pytest.mark.parametrize(
    ("call", "text", "retryable"),
    [
        ("fail", "guess failed with OSError", True),
        ("hang", "guess did not answer in 0.2 s", True),
        ("fault", "the board is broken", False),
    ],
)
async def test_a_call_that_fails_breaks_the_session(call: str, text: str, retryable: bool) -> None:
    life = life_of(task={"call": call})
    await life.open()
    with pytest.raises(EnvironmentFault, match=text) as raised:
        await life.call("guess", {"number": 1}, place=0)
    assert raised.value.retryable is retryable
    life.choice.task.clear()
    with pytest.raises(EnvironmentFault, match=text):
        await life.call("guess", {"number": 1}, place=0)
    assert await life.take_facts() is None
    await life.close()


async def test_an_error_of_its_code_is_named_with_its_place_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    plugin_errors._logged.clear()
    life = life_of(task={"call": "fail"})
    await life.open()
    with pytest.raises(EnvironmentFault, match=r"guess failed with OSError.* \(\w+\.py:\d+ in \w+\)$"):
        await life.call("guess", {"number": 1}, place=0)
    (line,) = [record for record in caplog.records if record.message == "plug-in failed"]
    fields = vars(line)["event_fields"]
    assert (fields["plugin"], fields["error"]) == ("environment game", "OSError")
    assert "OSError" in fields["exception"]
    await life.close()


async def test_a_method_of_other_arguments_is_the_environment_s_fault() -> None:
    """It fails when it is called, before there is anything to await: the worker seemed to have failed."""

    class Short(GuessingGame):
        async def open(self, task: Any) -> OpenedSession:  # type: ignore[override]
            return OpenedSession(task)

    life = life_of(Short())
    with pytest.raises(EnvironmentFault, match=r"environment game: open failed with TypeError: .*takes 2 positional"):
        await life.open()
    await life.close()


async def test_a_refusal_is_read_by_the_policy_and_breaks_nothing() -> None:
    life = life_of(task={"call": "refuse"})
    await life.open()
    assert (await life.call("guess", {"number": 1}, place=0)).content == "Error: the shop is closed"
    life.choice.task.clear()
    assert (await life.call("guess", {"number": WRONG}, place=0)).content == "wrong at guess 1"


async def test_one_without_state_loses_nothing_by_a_call_without_answer() -> None:
    life = life_of(GuessingGame(CrashEffect.STATELESS), {"call": "hang"})
    await life.open()
    answer = await life.call("guess", {"number": 1}, place=0)
    assert answer.content == "Error: Tool execution timed out after 0.2 s"
    life.choice.task.clear()
    assert (await life.call("guess", {"number": WRONG}, place=0)).content == "wrong at guess 1"


async def test_a_cancelled_call_leaves_the_session_in_doubt() -> None:
    life = life_of(task={"call": "hang"})
    await life.open()
    call = asyncio.create_task(life.call("guess", {"number": 1}, place=0))
    await asyncio.sleep(0.01)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    life.choice.task.clear()
    with pytest.raises(EnvironmentFault, match="guess was cancelled"):
        await life.call("guess", {"number": 1}, place=0)


async def test_an_older_attempt_is_refused_once_a_newer_one_has_a_session() -> None:
    host = EnvironmentHost(seconds=SECONDS, result_bytes=1000)
    old, new = life_of(attempt=1, host=host), life_of(attempt=2, host=host)
    await old.open()
    await new.open()
    with pytest.raises(EnvironmentFault, match="a newer attempt has its session") as raised:
        await old.call("guess", {"number": 1}, place=0)
    assert not raised.value.retryable
    assert (await new.call("guess", {"number": WRONG}, place=0)).content == "wrong at guess 1"


async def test_a_long_answer_is_cut() -> None:
    life = life_of(task={"call": "huge"})
    await life.open()
    content = (await life.call("guess", {"number": 1}, place=0)).content
    assert content == "x" * 1000 + "… [cut: 1000 of 20000000 characters shown]"


class Answering(GuessingGame):
    """Answers with what the test gives it."""

    def __init__(self, answer: Any = "fine", *, crash: CrashEffect = CrashEffect.RESTARTABLE, **given: Any) -> None:
        super().__init__(crash)
        self._answer, self._given = answer, given

    async def open(self, task: Any, seed: int | None, rollout_uid: str, attempt: int) -> OpenedSession:
        if "opened" in self._given:
            opened: OpenedSession = self._given["opened"]
            return opened
        return await super().open(task, seed, rollout_uid, attempt)

    async def restore(
        self, snapshot: bytes, task: Any, seed: int | None, rollout_uid: str, attempt: int
    ) -> OpenedSession:
        restored: OpenedSession = self._given["restored"]
        return restored

    async def call(self, session: Any, name: str, arguments: dict[str, Any]) -> StepAnswer | str:
        answer: StepAnswer = self._answer
        return answer

    async def score(self, session: Any, transcript: Any) -> SessionScore:
        score: SessionScore = self._given["score"]
        return score

    async def snapshot(self, session: Any) -> bytes:
        snapshot: bytes = self._given["snapshot"]
        return snapshot


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (None, "guess did not return a StepAnswer"),
        (StepAnswer(7), "guess did not return a StepAnswer"),  # type: ignore[arg-type]
        (StepAnswer([{"type": "image"}]), r"guess returned content\[0\]: type image; only text is supported"),  # type: ignore[arg-type]
        (StepAnswer([{"type": "text", "text": "a"}]), "guess did not return a StepAnswer"),  # type: ignore[arg-type]
        (StepAnswer("x", float("nan")), "the reward of guess is no finite number"),
        (StepAnswer("x", True), "the reward of guess is no finite number"),
        (StepAnswer("x", "1"), "the reward of guess is no finite number"),  # type: ignore[arg-type]
        (StepAnswer("x", info={"a": object()}), "the info of guess cannot be written"),
        (StepAnswer("x", info={"a": 2**70}), "the info of guess cannot be written"),
    ],
)
async def test_nonsense_is_a_fault_of_the_environment_for_good(answer: Any, text: str) -> None:
    life = life_of(Answering(answer))
    await life.open()
    with pytest.raises(EnvironmentFault, match=text) as raised:
        await life.call("guess", {}, place=0)
    assert not raised.value.retryable


async def test_what_else_an_answer_says_is_bounded() -> None:
    life = life_of(Answering(StepAnswer("x", 1, info={"a": "b" * MOST_INFO_BYTES})))
    await life.open()
    answer = await life.call("guess", {}, place=0)
    assert (answer.reward, type(answer.reward), list(answer.info)) == (1.0, float, ["cut"])


def named(*names: str, description: str = "") -> list[ToolDefinition]:
    return [ToolDefinition(function=ToolFunction(name=name, description=description)) for name in names]


DICT = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}, "strict": True}}


async def test_tools_may_be_dicts_in_openais_form() -> None:
    life = life_of(Answering(opened=OpenedSession(1, tools=[DICT, *named("a")])))
    await life.open()
    assert [tool.shown["function"]["name"] for tool in life.tools.values()] == ["look", "a"]
    assert (await life.call("look", {}, place=0)).content == "fine"
    await life.close()


@pytest.mark.parametrize(
    ("opened", "text"),
    [
        (None, "open did not return an OpenedSession but NoneType"),
        (OpenedSession(1, messages="hello"), "messages is no list but str"),  # type: ignore[arg-type]
        (OpenedSession(1, messages=None), "messages is no list but NoneType"),  # type: ignore[arg-type]
        (OpenedSession(1, messages=[{"role": "user"}, "x"]), r"messages\[1\] is no dict but str"),  # type: ignore[list-item]
        (OpenedSession(1, tools=None), "tools is no list but NoneType"),  # type: ignore[arg-type]
        (OpenedSession(1, tools=DICT), "tools is no list but dict"),  # type: ignore[arg-type]
        (OpenedSession(1, tools=["look"]), r"tools\[0\] is no ToolDefinition but str"),  # type: ignore[list-item]
        (OpenedSession(1, tools=[{"function": {}}]), r"tools\[0\]\.function\.name: Field required"),
        (
            OpenedSession(1, tools=[{"function": {"name": "a", "parameters": {"type": 2**70}}}]),
            r"tools\[0\] cannot be written as JSON",
        ),
        (OpenedSession(1, once=7), "once is no set of names"),  # type: ignore[arg-type]
        (OpenedSession(1, once=[7]), "once is no set of names"),  # type: ignore[arg-type]
        (OpenedSession(1, tools=named("a", "b", "a")), "two of its tools have one name"),
        (OpenedSession(1, tools=named(*map(str, range(MOST_TOOLS + 1)))), "it has 257 tools, at most 256"),
        (OpenedSession(1, tools=named("a", description="x" * MOST_TOOLS_BYTES)), "its tools take more than"),
    ],
)
async def test_an_opening_may_be_nonsense(opened: Any, text: str) -> None:
    life = life_of(Answering(opened=opened))
    with pytest.raises(EnvironmentFault, match=text) as raised:
        await life.open()
    assert not raised.value.retryable
    await life.close()


@pytest.mark.parametrize(
    ("restored", "text"),
    [
        (7, "restore did not return an OpenedSession but int"),
        (OpenedSession(1, messages="hello"), "restore returned what cannot be used: messages is no list"),  # type: ignore[arg-type]
    ],
)
async def test_a_restored_session_may_be_nonsense(restored: Any, text: str) -> None:
    life = life_of(Answering(crash=CrashEffect.SNAPSHOT, restored=restored))
    with pytest.raises(EnvironmentFault, match=text) as raised:
        await life.open(b"snapshot")
    assert not raised.value.retryable
    await life.close()


@pytest.mark.parametrize(
    ("score", "text"),
    [
        (1.0, "score did not return a SessionScore but float"),
        (SessionScore(float("inf")), "the reward of its score is no finite number"),
        (SessionScore(0.0, {"a": float("nan")}), "the parts of its score are no dict of finite numbers"),
        (SessionScore(0.0, None), "the parts of its score"),  # type: ignore[arg-type]
        (SessionScore(0.0, {1: 1.0}), "the parts of its score"),  # type: ignore[dict-item]
        (SessionScore(0.0, {"\ud800": 1.0}), "the parts of its score"),
    ],
)
async def test_a_score_is_finite(score: Any, text: str) -> None:
    life = life_of(Answering(score=score))
    await life.open()
    with pytest.raises(EnvironmentFault, match=text) as raised:
        await life.score([])
    assert not raised.value.retryable


@pytest.mark.parametrize("snapshot", ["text", b"x" * (MOST_SNAPSHOT_BYTES + 1)])
async def test_a_snapshot_is_bounded(snapshot: Any) -> None:
    life = life_of(Answering(crash=CrashEffect.SNAPSHOT, snapshot=snapshot))
    await life.open()
    await life.call("guess", {}, place=0)
    with pytest.raises(EnvironmentFault, match="a snapshot must be at most 1,048,576 bytes"):
        await life.take_facts()


@pytest.mark.parametrize("crash", CrashEffect)
async def test_only_an_open_session_that_cannot_be_made_again_is_final(crash: CrashEffect) -> None:
    life = life_of(GuessingGame(crash))
    assert not life.final
    await life.open()
    assert life.final is (crash is CrashEffect.NONE)


async def test_what_is_asked_is_counted_by_how_it_ended() -> None:
    take_rows()
    for task in ({"open": "full"}, {"open": "wrong task"}, {"open": "fail"}, {"open": "hang"}):
        with pytest.raises((EnvironmentFull, RequestFault, EnvironmentFault)):
            await life_of(task=task).open()
    for task in ({}, {"call": "refuse"}, {"call": "fail"}, {"call": "hang"}):
        life = life_of(task=task)
        await life.open()
        with suppress(EnvironmentFault):
            await life.call("guess", {"number": WRONG}, place=0)
            await life.score(life.messages)
    life = life_of(task={"call": "hang"})
    await life.open()
    call = asyncio.create_task(life.call("guess", {"number": 1}, place=0))
    await asyncio.sleep(0.01)
    call.cancel()
    await asyncio.wait([call])
    fields = [field.split("|") for _, field, _ in take_rows() if field.startswith("environment_call_")]
    assert {tuple(labels) for _, *labels, part in fields if part != "sum"} == {
        *(("game", "open", outcome) for outcome in ("ok", "full", "refused", "error", "timeout")),
        *(("game", "call", outcome) for outcome in ("ok", "refused", "error", "timeout", "cancelled")),
        ("game", "score", "ok"),
    }
