"""The Osmosis wire from end to end: the API, a worker, and a controller that answers without ids."""

import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import orjson
import pytest
from starlette.responses import Response
from tests.support.chat_server import ANSWER, ASK, KEY, ChatServer, chat_server
from tests.support.games import RIGHT, SEED
from tests.support.inside_api import client_of, running_api
from tests.support.inside_worker import InsideWorker, inside_worker
from tests.support.scripted_worker import OWNER
from tests.support.secrets import secrets_file

from rolloutpool_common.capabilities.osmosis.request import LEASE_HEADER
from rolloutpool_common.protocol.kept_journal import read_journal
from rolloutpool_common.protocol.result import Alignment, RolloutResult
from rolloutpool_common.rendering import TokenizerCache


@pytest.fixture(scope="module")
def controller() -> Iterator[ChatServer]:
    with chat_server() as made:
        yield made


@dataclass
class Wire:
    """A pool of an API and a worker, both inside the test's own process."""

    client: httpx.AsyncClient
    worker: InsideWorker
    controller: ChatServer

    async def submit(self, name: str, **changes: Any) -> httpx.Response:
        """Submits a rollout."""
        fields = {
            "rollout_id": name,
            "initial_messages": [ASK],
            "chat_completions_url": self.controller.url(name),
            "llm_api_key": KEY,
            "grade": False,
        }
        return await self.client.post("/rollout", json={**fields, **changes})

    async def run(self, name: str, **changes: Any) -> dict[str, Any]:
        """Submits a rollout, has the worker run it, and polls its end."""
        accepted = await self.submit(name, **changes)
        assert accepted.status_code == 202, accepted.text
        await self.worker.take(await self.uid(name))
        headers = {LEASE_HEADER: accepted.json()["polling_lease_token"]}
        answer: dict[str, Any] = (await self.client.get(f"/rollout/{name}/result", headers=headers)).json()
        return answer

    async def uid(self, name: str) -> str:
        uid = await self.worker.services.store.rollouts.find(name, OWNER)
        assert uid is not None
        return uid

    async def record(self, name: str) -> RolloutResult:
        """The whole record of a rollout that has ended."""
        return await self.worker.result(await self.uid(name))


@pytest.fixture
async def wire(redis_url: str, tokenizers: TokenizerCache, controller: ChatServer) -> AsyncIterator[Wire]:
    settings = {"infra_retries": 0, "trainer_attempts": 2, "max_reply_mb": 2, "secrets_file": secrets_file()}
    async with (
        running_api(redis_url) as api,
        client_of(api) as client,
        inside_worker(redis_url, tokenizers, **settings) as worker,
    ):
        yield Wire(client, worker, controller)


@contextlib.contextmanager
def replies(controller: ChatServer, *messages: dict[str, Any] | Response) -> Iterator[None]:
    """Has the controller say these, one after the other."""
    left = list(messages)

    def change(reply: dict[str, Any]) -> Response | None:
        said = left.pop(0)
        if isinstance(said, Response):
            return said
        reply["choices"][0]["message"] = {"role": "assistant", "content": None, **said}
        return None

    controller.change = change
    try:
        yield
    finally:
        controller.change = None


async def test_the_policy_calculates_and_the_messages_come_back(wire: Wire) -> None:
    answer = await wire.run("sum", label="38")
    assert answer["status"] == "success"
    sample = answer["sample"]
    assert [message["role"] for message in sample["messages"]] == ["user", "assistant", "tool", "assistant"]
    assert sample["messages"][2:] == [
        {"role": "tool", "content": "38", "tool_call_id": "call_1", "name": "add"},
        {"role": "assistant", "content": ANSWER},
    ]
    assert (sample["label"], sample["reward"], sample["metrics"]["num_llm_calls"]) == ("38", None, 2)
    first, second = wire.controller.of("sum")
    assert {tool["function"]["name"] for tool in first["tools"]} >= {"add", "divide"}
    # OpenAI's messages of tools have no name.
    assert sample["messages"][2].pop("name") == "add"
    assert second["messages"] == sample["messages"][:-1]
    record = await wire.record("sum")
    # No ids came, so there is nothing that could be trained by mistake, and no warning about what cannot be known.
    assert (record.samples, record.alignment, record.tokenizer) == ([], Alignment.UNVERIFIED, {})
    assert record.warnings == []
    # Its journal is kept all the same.
    assert [one.kind for one in read_journal(record).records] == ["turn", "observation", "turn"]


async def test_each_step_may_be_another_worker_s(
    redis_url: str, tokenizers: TokenizerCache, controller: ChatServer
) -> None:
    settings = {"infra_retries": 0, "trainer_attempts": 2, "secrets_file": secrets_file()}
    async with inside_worker(redis_url, tokenizers, **settings) as worker:
        result = await worker.run_in_pieces(
            rollout_id="pieces",
            server_url=controller.url("pieces"),
            callback_api_key=KEY,
            messages=[ASK],
            messages_only=True,
            tokenizer_name="",
            allow_untrained=True,
        )
    assert (result.attempt, result.messages[-1].content) == (3, ANSWER)
    # A finished turn is not asked again.
    assert len(controller.of("pieces")) == 2


async def test_the_options_choose_tools_and_turns(wire: Wire) -> None:
    chosen: dict[str, Any] = {"rolloutpool": {"tools": []}}
    assert (await wire.run("bare", metadata=chosen))["sample"]["messages"][-1]["content"] == "Hello."
    (asked,) = wire.controller.of("bare")
    assert "tools" not in asked
    answer = await wire.run("short", metadata={"rolloutpool": {"max_turns": 1, "tools": ["add"]}})
    assert answer["sample"]["extra_fields"]["finish_reason"] == "max_turns"
    assert [tool["function"]["name"] for tool in wire.controller.of("short")[0]["tools"]] == ["add"]


async def test_the_environment_s_score_is_the_reward(wire: Wire) -> None:
    function = {"name": "guess", "arguments": orjson.dumps({"number": RIGHT}).decode()}
    chosen = {"rolloutpool": {"environment": {"name": "game_stateless", "seed": SEED}}}
    with replies(wire.controller, {"tool_calls": [{"id": "g", "type": "function", "function": function}]}):
        answer = await wire.run("game", grade=True, metadata=chosen)
    assert (answer["status"], answer["err_message"]) == ("success", None)
    record = await wire.record("game")
    assert record.environment is not None
    assert answer["sample"]["reward"] == record.environment.reward
    assert isinstance(answer["sample"]["reward"], float)
    (asked,) = wire.controller.of("game")
    assert [tool["function"]["name"] for tool in asked["tools"]] == ["guess"]
    # What the session began with is part of the conversation.
    assert len(asked["messages"]) == 2


@pytest.mark.parametrize(
    ("reply", "category", "text"),
    [
        (Response(b"<html>", media_type="text/html"), "http_error", "not JSON"),
        (Response(b"{}", status_code=400), "http_error", "answered 400"),
        ({"tool_calls": [{"id": "", "function": {"name": "add", "arguments": "{}"}}]}, "http_error", "tool_calls.0.id"),
        (Response(b"x" * 3_000_000), "http_error", "larger than"),
    ],
)
async def test_a_controller_s_failure_is_named(wire: Wire, reply: Any, category: str, text: str) -> None:
    # A page is asked for again: a gateway may have written it.
    with replies(wire.controller, reply, reply):
        answer = await wire.run(f"bad-{text[:3].strip()}")
    assert (answer["status"], answer["err_category"], answer["sample"]) == ("failure", category, None)
    assert text in answer["err_message"]


async def test_a_worker_without_the_wire_says_so(wire: Wire) -> None:
    wire.worker.services.messages_policy = None
    answer = await wire.run("unknown")
    assert (answer["status"], answer["err_category"]) == ("failure", "validation_error")
    assert "messages alone" in answer["err_message"]
