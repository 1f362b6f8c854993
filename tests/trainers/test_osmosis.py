"""The Osmosis SDK's own client drives a pool, whose requests to the controller are read by OpenAI's own types."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from pydantic import TypeAdapter
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from tests.support.chat_server import ANSWER, ASK, KEY, ChatServer, chat_server
from tests.support.games import RIGHT, SEED

from rolloutpool_trainer import LocalPool, serve_callback

pytest.importorskip("osmosis_ai", reason="the SDK has an environment of its own: make test-trainers")

from openai.types.chat import ChatCompletion
from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming
from osmosis_ai.rollout.client import RolloutClient, RolloutHandle, RolloutProtocolError
from osmosis_ai.rollout.types import RolloutResultResponse, RolloutStatus

# Deprecations inside these libraries are not ours to mend.
pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.timeout(180)]

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalPool]:
    log = tmp_path_factory.mktemp("graders") / "log"
    env = {"ROLLOUTPOOL_PLUGINS": "tests.support.games,tests.support.graders", "PYTHONPATH": str(ROOT)}
    with LocalPool(workers=2, flower=False, env=env | {"GRADER_LOG": str(log)}) as running:
        yield running


@pytest.fixture(scope="module")
def controller() -> Iterator[ChatServer]:
    with chat_server() as server:
        yield server


@pytest.fixture(scope="module")
def gateway(pool: LocalPool) -> Iterator[str]:
    """What stands before a server in production: while the API is away, it answers 502."""

    async def forward(request: Request) -> Response:
        headers = {name: value for name, value in request.headers.items() if name != "host"}
        async with httpx.AsyncClient(base_url=pool.url, timeout=60, trust_env=False) as client:
            try:
                answer = await client.request(
                    request.method, request.url.path, content=await request.body(), headers=headers
                )
            except httpx.TransportError:
                return Response(status_code=502)
        kept = {name: answer.headers[name] for name in ("content-type", "retry-after") if name in answer.headers}
        return Response(answer.content, answer.status_code, kept)

    app = Starlette(routes=[Route("/{path:path}", forward, methods=["GET", "POST"])])
    with serve_callback(app, [0]) as served:
        yield served.url


@pytest.fixture
async def client(gateway: str) -> AsyncIterator[RolloutClient]:
    made = RolloutClient(url=gateway, admission_timeout_sec=30, api_key="any")
    yield made
    await made.aclose()


async def submit(client: RolloutClient, controller: ChatServer, name: str, **more: Any) -> RolloutHandle:
    given = {"initial_messages": [ASK], "llm_api_key": KEY, "grade": False, **more}
    return await client.run_rollout_async(chat_completions_url=controller.url(name), rollout_id=name, **given)


def check_requests(controller: ChatServer, name: str, turns: int) -> None:
    """Reads what the controller was asked with OpenAI's types; unknown keys and wrong values are errors."""
    asked = controller.of(name)
    assert len(asked) == turns
    for body in asked:
        parsed = TypeAdapter(CompletionCreateParamsNonStreaming).validate_python(body)
        assert set(body) <= CompletionCreateParamsNonStreaming.__optional_keys__ | {"model", "messages"}
        assert parsed["model"] == body["model"]


async def ended(handle: RolloutHandle) -> RolloutResultResponse:
    return await asyncio.wait_for(handle.wait_for_completion(), 60)


async def test_a_rollout_from_its_submit_to_its_sample(client: RolloutClient, controller: ChatServer) -> None:
    controller.gate.clear()
    handle = await submit(client, controller, "sum", label="38", metadata={"row": 3})
    assert await asyncio.wait_for(handle.wait_for_running(), 30) is RolloutStatus.RUNNING
    assert not handle.done()
    controller.gate.set()
    result = await ended(handle)
    assert (result.status, result.err_message) == (RolloutStatus.SUCCESS, None)
    assert result.sample is not None
    assert (result.sample.label, result.sample.reward) == ("38", None)
    assert result.sample.messages[-1] == {"role": "assistant", "content": ANSWER}
    assert result.sample.metrics["num_tool_calls"] == 1
    check_requests(controller, "sum", 2)


def test_the_controller_of_these_tests_answers_as_openai_does(controller: ChatServer) -> None:
    answer = httpx.post(
        f"{controller.url('types')}/chat/completions",
        json={"model": "m", "messages": [ASK]},
        headers={"authorization": f"Bearer {KEY}", "idempotency-key": "k"},
        trust_env=False,
    )
    assert ChatCompletion.model_validate(answer.json(), strict=True).choices[0].message.content == "Hello."


async def test_the_environment_s_score_is_the_reward(client: RolloutClient, controller: ChatServer) -> None:
    function = {"name": "guess", "arguments": orjson.dumps({"number": RIGHT}).decode()}

    def change(reply: dict[str, Any]) -> None:
        calls = [{"id": "g", "type": "function", "function": function}]
        reply["choices"][0]["message"] = {"role": "assistant", "content": None, "tool_calls": calls}

    controller.change = change
    try:
        chosen = {"rolloutpool": {"environment": {"name": "game_stateless", "seed": SEED}}}
        result = await ended(await submit(client, controller, "game", grade=True, metadata=chosen))
    finally:
        controller.change = None
    assert result.status is RolloutStatus.SUCCESS
    assert result.sample is not None
    assert isinstance(result.sample.reward, float)
    check_requests(controller, "game", 1)


async def test_a_grader_gives_the_reward(client: RolloutClient, controller: ChatServer, tmp_path: Path) -> None:
    may_end = tmp_path / "may_end"
    chosen = {"rolloutpool": {"grader": {"name": "hangs", "options": str(may_end)}}}
    handle = await submit(client, controller, "graded-1", grade=True, grader_timeout_sec=60, metadata=chosen)
    assert await asyncio.wait_for(handle.wait_for_grading(), 30) is RolloutStatus.GRADING
    may_end.touch()
    result = await ended(handle)
    assert result.status is RolloutStatus.SUCCESS
    assert result.sample is not None
    assert result.sample.reward == 0.5


async def test_a_grader_that_is_late_is_a_timeout(client: RolloutClient, controller: ChatServer) -> None:
    chosen = {"rolloutpool": {"grader": {"name": "hangs"}}}
    result = await ended(
        await submit(client, controller, "graded-2", grade=True, grader_timeout_sec=0.5, metadata=chosen)
    )
    assert (result.status, result.err_category) == (RolloutStatus.FAILURE, "timeout")
    assert result.sample is None or result.sample.reward is None


async def test_the_client_waits_until_nothing_runs(
    client: RolloutClient, controller: ChatServer, pool: LocalPool
) -> None:
    idle = await client.wait_idle(timeout_sec=30)
    assert idle["lifecycle"] == {"accepting_rollouts": True, "active_rollouts": 0}
    controller.gate.clear()
    try:
        handle = await submit(client, controller, "busy")
        with pytest.raises(TimeoutError):
            await client.wait_idle(timeout_sec=1, poll_interval_sec=0.1, process_id=idle["process_id"])
        # The API is killed and started again, and no rollout is lost; so the same wait goes on.
        waiting = asyncio.create_task(client.wait_idle(timeout_sec=60, process_id=idle["process_id"]))
        await asyncio.sleep(0)
        os.kill(_child_of_this_process("rolloutpool_api"), signal.SIGKILL)
        await asyncio.sleep(0.5)
        assert not waiting.done()
    finally:
        controller.gate.set()
    assert (await ended(handle)).status is RolloutStatus.SUCCESS
    assert (await waiting)["lifecycle"]["active_rollouts"] == 0


async def test_what_cannot_be_graded_is_refused_before_it_runs(client: RolloutClient, controller: ChatServer) -> None:
    # The client's own default.
    with pytest.raises(RolloutProtocolError) as caught:
        await submit(client, controller, "graded", grade=True)
    assert caught.value.status_code == 422
    assert controller.of("graded") == []


async def test_an_id_is_taken_once(client: RolloutClient, controller: ChatServer) -> None:
    first = await submit(client, controller, "twice")
    with pytest.raises(RolloutProtocolError) as caught:
        await submit(client, controller, "twice")
    assert caught.value.status_code == 409
    # The first one is not harmed.
    assert (await ended(first)).status is RolloutStatus.SUCCESS


async def test_a_cancel_reaches_the_worker(client: RolloutClient, controller: ChatServer) -> None:
    controller.gate.clear()
    try:
        handle = await submit(client, controller, "cancelled")
        await asyncio.wait_for(handle.wait_for_running(), 30)
        answer = await client.cancel_rollout("cancelled")
        assert answer.dispositions == {"cancelled": "cancelled_running"}
        result = await ended(handle)
    finally:
        controller.gate.set()
    assert (result.status, result.sample) == (RolloutStatus.CANCELLED, None)
    assert (await client.cancel_rollout("cancelled")).dispositions == {"cancelled": "not_found"}


async def test_a_controller_s_failure_has_the_wire_s_category(client: RolloutClient, controller: ChatServer) -> None:
    handle = await submit(client, controller, "locked", llm_api_key="wrong")
    result = await ended(handle)
    assert (result.status, result.err_category) == (RolloutStatus.FAILURE, "http_error")
    assert "401" in (result.err_message or "")


async def test_the_api_and_a_worker_die_and_the_client_notices_nothing(
    client: RolloutClient, controller: ChatServer, pool: LocalPool
) -> None:
    controller.gate.clear()
    try:
        handles = [await submit(client, controller, f"kept-{number}") for number in range(6)]
        for handle in handles:
            await asyncio.wait_for(handle.wait_for_running(), 30)
        os.kill(_child_of_this_process("rolloutpool_api"), signal.SIGKILL)
        await asyncio.to_thread(pool.kill_worker, 0)
    finally:
        controller.gate.set()
    results = [await ended(handle) for handle in handles]
    assert {result.status for result in results} == {RolloutStatus.SUCCESS}
    for result in results:
        assert result.sample is not None
        assert result.sample.messages[-1]["content"] == ANSWER


def _child_of_this_process(module: str) -> int:
    for entry in Path("/proc").iterdir():
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1]) if entry.name.isdigit() else 0
            if parent == os.getpid() and module.encode() in (entry / "cmdline").read_bytes():
                return int(entry.name)
        except OSError:
            continue
    raise AssertionError(f"no child runs {module}")
