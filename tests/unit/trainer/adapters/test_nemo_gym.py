"""NeMo Gym's agent server. Its own collector, resources server and types: tests/trainers/test_nemo.py."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from tests.support.api_documents import failed, result
from tests.support.stub_pool import Answer, StubPool
from tests.support.waiting import until_true

from rolloutpool_trainer.adapters.driver import PoolDriver
from rolloutpool_trainer.adapters.nemo_gym import RowRefused, nemo_gym_agent, prompt_of
from rolloutpool_trainer.endpoint.server import serve_callback

TOOL = {"type": "function", "name": "add", "parameters": {}, "strict": True}
PARAMS = {"input": [{"role": "user", "content": "1 + 1?"}], "tools": [TOOL], "temperature": 0.5}
ROW = {"responses_create_params": PARAMS, "expected": "2", "agent_ref": {"name": "pool"}}


@asynccontextmanager
async def agent(driver: PoolDriver, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(nemo_gym_agent(driver, **options), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://agent") as client:
        yield client


async def test_a_row_comes_back_with_response_and_reward(
    pool: StubPool, driver: PoolDriver, ends: Callable[..., None]
) -> None:
    ends([{"reward": 0.75, "reward_parts": {"sum": 0.5, "style": 0.25}}])
    async with agent(driver, environment="calculator") as client:
        answer = await client.post("/run", json=ROW)
    document = answer.json()
    assert answer.status_code == 200
    assert {name: document[name] for name in ROW} == ROW
    assert (document["reward"], document["reward_components"]) == (0.75, {"sum": 0.5, "style": 0.25})
    (item,) = document["response"]["output"]
    assert (item["prompt_token_ids"], item["generation_token_ids"]) == ([1, 2], [3, 4])
    (submitted,) = pool.requests[0].body["rollouts"]
    assert submitted == {
        "messages": [{"role": "user", "content": "1 + 1?"}],
        "sampling_params": {"temperature": 0.5},
        "tools": [],
        "environment": {"name": "calculator", "task": ROW},
    }


async def test_without_an_environment_the_row_names_the_pool_s_tools(
    pool: StubPool, driver: PoolDriver, ends: Callable[..., None]
) -> None:
    ends([{"reward_parts": {"style": 0.25}}])
    row = {"responses_create_params": PARAMS | {"model": "m", "max_output_tokens": 9}, "expected": "2"}
    async with agent(driver, reward=lambda rollout, row: float(row["expected"])) as client:
        document = (await client.post("/run", json=row)).json()
    assert document["reward"] == 2.0
    # NeMo-RL asserts that components add up, so those that do not are left out.
    assert "reward_components" not in document
    (submitted,) = pool.requests[0].body["rollouts"]
    assert (submitted["tools"], submitted["model"]) == (["add"], "m")
    assert submitted["sampling_params"] == {"temperature": 0.5, "max_tokens": 9}


async def test_responses_are_answered_without_a_reward(driver: PoolDriver, ends: Callable[..., None]) -> None:
    ends([{}])
    async with agent(driver) as client:
        document = (await client.post("/v1/responses", json={"input": "1 + 1?"})).json()
    assert document["object"] == "response"
    assert document["output"][0]["generation_token_ids"] == [3, 4]


async def test_rewards_are_aggregated(driver: PoolDriver) -> None:
    async with agent(driver) as client:
        for rewards, means in (([1.0, 0.0], {"mean/reward": 0.5}), ([], {})):
            body = {"verify_responses": [{"reward": reward} for reward in rewards]}
            document = (await client.post("/aggregate_metrics", json=body)).json()
            assert document == {"group_level_metrics": [], "agent_metrics": means, "key_metrics": means}
        assert (await client.post("/aggregate_metrics", json={"verify_responses": [{}]})).status_code == 422


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"{", "no JSON"),
        (b"[1]", "another form"),
        (b"{}", "has no `responses_create_params`"),
        (b'{"responses_create_params": {"input": []}}', "neither a text nor a list"),
        (b'{"responses_create_params": {"input": [{"role": "user"}]}}', "another form"),
        (b'{"responses_create_params": {"input": [7]}}', "another form"),
        (b'{"responses_create_params": {"input": "q", "tools": [{}]}}', "another form"),
    ],
)
async def test_a_row_that_is_no_row_is_the_data_s_fault(driver: PoolDriver, body: bytes, said: str) -> None:
    async with agent(driver) as client:
        answer = await client.post("/run", content=body)
    assert answer.status_code == 422
    assert said in answer.json()["detail"]


async def test_what_is_no_training_data_has_no_reward(driver: PoolDriver, ends: Callable[..., None]) -> None:
    ends([{"samples": result(0)["samples"] * 2}], [{}], [failed()], [failed()], [failed("request")])
    async with agent(driver) as client:
        answers = [await client.post("/run", json=ROW) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [422, 422, 503, 422]
    said = [answer.json()["detail"] for answer in answers]
    for text, expected in zip(said, ("2 samples", "has no reward", "network_error", ""), strict=True):
        assert expected in text


@pytest.mark.parametrize(("status", "passed_on"), [(422, 422), (401, 422), (500, 503)])
async def test_what_the_pool_says_is_passed_on(pool: StubPool, status: int, passed_on: int) -> None:
    pool.on("POST", "/v1/batches", Answer(status, {"error": {"message": "no such tool"}}))
    async with agent(PoolDriver(pool.url, timeout=0.0)) as client:
        answer = await client.post("/run", json=ROW)
    assert answer.status_code == passed_on
    assert "no such tool" in answer.json()["detail"]


async def test_a_reward_that_fails_is_an_error_of_the_agent(driver: PoolDriver, ends: Callable[..., None]) -> None:
    ends([{}])

    def broken(rollout: Any, row: Any) -> float:
        raise ZeroDivisionError

    async with agent(driver, reward=broken) as client:
        assert (await client.post("/run", json=ROW)).status_code == 500


async def test_whoever_goes_away_cancels_the_rollout(pool: StubPool, driver: PoolDriver) -> None:
    name = "b" + "0" * 32
    running = {"items": [], "next_cursor": "0", "complete": False}
    pool.on("POST", "/v1/batches", Answer(202, {"batch_id": name, "total": 1, "rollouts": ["a"]}))
    pool.on("GET", f"/v1/batches/{name}/results", Answer(body=running))
    pool.on("DELETE", f"/v1/batches/{name}", Answer(body={}))
    # On a real socket, because only there anybody can go away.
    with serve_callback(nemo_gym_agent(driver), [0]) as served:
        async with httpx.AsyncClient(base_url=served.url, trust_env=False) as client:
            with pytest.raises(httpx.ReadTimeout):
                await client.post("/run", json=ROW, timeout=0.3)
        await until_true(lambda: pool.requests[-1].method == "DELETE")


def test_each_kind_of_item_is_a_message() -> None:
    call = {"type": "function_call", "call_id": "c", "name": "add", "arguments": "{}"}
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I add."}]}
    made = {"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    assert prompt_of(
        {
            "instructions": "Be brief.",
            "input": [
                {"role": "developer", "content": "Add."},
                {
                    "role": "user",
                    "content": [{"type": "input_text", "text": "1 + "}, {"type": "input_text", "text": "1"}],
                },
                said,
                call,
                {"type": "function_call_output", "call_id": "c", "output": "2"},
                call,
            ],
        }
    ) == [
        {"role": "system", "content": "Be brief."},
        {"role": "system", "content": "Add."},
        {"role": "user", "content": "1 + 1"},
        {"role": "assistant", "content": "I add.", "tool_calls": [made]},
        {"role": "tool", "content": "2", "tool_call_id": "c"},
        {"role": "assistant", "content": None, "tool_calls": [made]},
    ]


@pytest.mark.parametrize(
    "item",
    [
        {"type": "reasoning", "summary": []},
        {"role": "user", "content": [{"type": "input_image", "image_url": "data:"}]},
        {"role": "user", "content": 7},
    ],
)
def test_what_no_template_shows_is_refused(item: dict[str, Any]) -> None:
    with pytest.raises(RowRefused):
        prompt_of({"input": [item]})
