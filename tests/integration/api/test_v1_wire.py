"""Protocol v1 as its clients see it on the wire: each answer's keys, words and numbers."""

import asyncio

import httpx
import pytest
from tests.support.api_requests import v1_request
from tests.support.scripted_worker import OWNER, ScriptedWorker, run_v1
from tests.support.waiting import until

from rolloutpool_common.outcomes import Boundary, Category, Failure, FailureKind, FinishReason, RolloutStatus
from rolloutpool_common.protocol.result import Spans
from rolloutpool_common.store import Store

RESPONSE_KEYS = [
    "rollout_id",
    "status",
    "final_messages",
    "finish_reason",
    "error_message",
    "metrics",
    "extra_fields",
]
METRIC_KEYS = [
    "total_latency_ms",
    "llm_latency_ms",
    "tool_latency_ms",
    "num_llm_calls",
    "num_tool_calls",
    "prompt_tokens",
    "response_tokens",
    "max_context_tokens",
]


async def test_health_is_exact(client: httpx.AsyncClient) -> None:
    response = await client.get("/health")
    assert response.status_code == 200
    assert response.content == b'{"status":"healthy","service":"rollout-server"}'


async def test_answer_has_all_keys_in_order(client: httpx.AsyncClient, worker: ScriptedWorker) -> None:
    response = await run_v1(client, worker, v1_request(), spans=Spans(total_ms=12.5, llm_ms=8.25, tools_ms=1.5))
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    answer = response.json()
    assert list(answer) == RESPONSE_KEYS
    assert list(answer["metrics"]) == METRIC_KEYS
    assert answer == {
        "rollout_id": "job-step1-idx0-ab12",
        "status": "COMPLETED",
        "final_messages": [
            {"role": "user", "content": "Calculate 5 + 3", "tool_calls": None, "tool_call_id": None},
            {"role": "assistant", "content": "42", "tool_calls": None, "tool_call_id": None},
        ],
        "finish_reason": "stop",
        "error_message": None,
        "metrics": {
            "total_latency_ms": 12.5,
            "llm_latency_ms": 8.25,
            "tool_latency_ms": 1.5,
            "num_llm_calls": 1,
            "num_tool_calls": 0,
            "prompt_tokens": 10,
            "response_tokens": 3,
            "max_context_tokens": 3,
        },
        "extra_fields": {},
    }


async def test_messages_leave_in_normal_form_with_their_extras(
    client: httpx.AsyncClient, worker: ScriptedWorker
) -> None:
    call = {"index": 0, "id": "c1", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    body = v1_request(messages=[{"vendor": {"x": [1]}, "name": "n", "role": "assistant", "tool_calls": [call]}])
    answer = (await run_v1(client, worker, body)).json()
    message = answer["final_messages"][0]
    assert list(message) == ["role", "content", "tool_calls", "tool_call_id", "vendor", "name"]
    assert message["tool_calls"] == [
        {"id": "c1", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    ]


async def test_the_worker_gets_what_was_posted(client: httpx.AsyncClient, worker: ScriptedWorker, store: Store) -> None:
    body = v1_request(
        sampling_params={"temperature": 0.5, "top_k": 3, "stop": ["x"]},
        tokenizer_revision="main",
        max_turns=3,
        max_tokens_total=77,
        metadata={"debug_trace": True},
        callback_api_key="k-1",
        unknown_field=1,
    )
    posted = asyncio.create_task(client.post("/rollout", json=body))
    uid = await until(lambda: store.rollouts.find(body["rollout_id"], OWNER))
    claim = await worker.claim(uid)
    spec = store.with_secrets(claim.spec).model_dump()
    assert spec["v1"] is True
    assert spec["server_url"] == "http://127.0.0.1:8081"
    assert spec["sampling_params"] == {
        "temperature": 0.5,
        "top_p": 1.0,
        "max_tokens": 512,
        "stop": ["x"],
        "logprobs": True,
    }
    assert spec["tokenizer_revision"] == "main"
    assert (spec["max_turns"], spec["max_tokens_total"]) == (3, 77)
    assert spec["metadata"] == {"debug_trace": True}
    assert spec["callback_api_key"] == "k-1"
    assert claim.deadline_in_s == pytest.approx(600, abs=30)
    await store.rollouts.cancel(uid)
    assert (await posted).status_code == 200


async def test_a_failure_is_an_answer_of_the_same_form(client: httpx.AsyncClient, worker: ScriptedWorker) -> None:
    failed = Failure(
        kind=FailureKind.INFRA,
        boundary=Boundary.TRAINER,
        category=Category.TOKENIZER_ERROR,
        message="it broke",
        retryable=False,
    )
    end = {"status": RolloutStatus.FAILED, "finish_reason": FinishReason.ERROR, "failure": failed}
    response = await run_v1(client, worker, v1_request(), **end)
    assert response.status_code == 200
    answer = response.json()
    assert list(answer) == RESPONSE_KEYS
    assert (answer["status"], answer["finish_reason"], answer["final_messages"]) == ("ERROR", None, [])
    assert answer["error_message"] == "Failed to load tokenizer: tiny: it broke"
    assert answer["extra_fields"] == {"error_category": "tokenizer_error"}
    assert (answer["metrics"]["num_llm_calls"], answer["metrics"]["max_context_tokens"]) == (1, 0)
