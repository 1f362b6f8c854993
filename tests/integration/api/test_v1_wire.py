"""Protocol v1 as its clients see it on the wire: what is accepted, what is refused and with which words."""

import asyncio
import json
from typing import Any

import httpx
import pytest
from tests.support.api_requests import v1_request
from tests.support.scripted_worker import OWNER, ScriptedWorker
from tests.support.waiting import until

from rolloutpool_common.outcomes import Boundary, Category, Failure, FailureKind, FinishReason, RolloutStatus
from rolloutpool_common.protocol.messages import Message
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


async def run(client: httpx.AsyncClient, worker: ScriptedWorker, body: dict[str, Any], **result: Any) -> httpx.Response:
    """Posts a rollout and ends it."""
    async with asyncio.TaskGroup() as group:
        posted = group.create_task(client.post("/rollout", json=body))
        group.create_task(worker.end_named(body["rollout_id"], **result))
    return posted.result()


async def test_health_is_exact(client: httpx.AsyncClient) -> None:
    response = await client.get("/health")
    assert response.status_code == 200
    assert response.content == b'{"status":"healthy","service":"rollout-server"}'


async def test_answer_has_all_keys_in_order(client: httpx.AsyncClient, worker: ScriptedWorker) -> None:
    response = await run(client, worker, v1_request(), spans=Spans(total_ms=12.5, llm_ms=8.25, tools_ms=1.5))
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
    answer = (await run(client, worker, body)).json()
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


@pytest.mark.parametrize(
    ("reason", "on_wire", "kept"),
    [
        (FinishReason.STOP, "stop", 2),
        (FinishReason.LENGTH, "stop", 2),
        (FinishReason.MAX_TURNS, "max_turns", 2),
        (FinishReason.MAX_TOKENS, "max_tokens", 1),
    ],
)
async def test_finish_reasons(
    client: httpx.AsyncClient, worker: ScriptedWorker, reason: FinishReason, on_wire: str, kept: int
) -> None:
    answer = (await run(client, worker, v1_request(), finish_reason=reason)).json()
    assert answer["finish_reason"] == on_wire
    assert len(answer["final_messages"]) == kept


def failure(category: Category, message: str = "it broke", status: int | None = None) -> Failure:
    return Failure(
        kind=FailureKind.INFRA,
        boundary=Boundary.TRAINER,
        category=category,
        message=message,
        retryable=False,
        http_status=status,
    )


@pytest.mark.parametrize(
    ("failed", "text", "extra"),
    [
        (
            failure(Category.TOKENIZER_ERROR),
            "Failed to load tokenizer: tiny",
            {"error_category": "tokenizer_error"},
        ),
        (
            failure(Category.RATE_LIMITED, status=429),
            "Trainer rate limit exceeded (429)",
            {"error_category": "rate_limited", "http_status": 429},
        ),
        (
            failure(Category.TRAINER_SERVER_ERROR, status=503),
            "Trainer server error (status 503) - retryable",
            {"error_category": "trainer_server_error", "http_status": 503},
        ),
        (
            failure(Category.TRAINER_CLIENT_ERROR, status=404),
            "Trainer client error (status 404) - check request",
            {"error_category": "trainer_client_error", "http_status": 404},
        ),
        (
            failure(Category.MASK_REFUSED, status=422),
            "Trainer client error (status 422) - check request",
            {"error_category": "trainer_client_error", "http_status": 422},
        ),
        (
            failure(Category.TRAINER_ERROR, status=302),
            "Trainer returned error (status 302)",
            {"error_category": "trainer_error", "http_status": 302},
        ),
        (
            failure(Category.NETWORK_ERROR),
            "Network error communicating with trainer",
            {"error_category": "network_error"},
        ),
        (
            failure(Category.TOOL_ERROR, "bad tool"),
            "Failed to execute tools: bad tool",
            {"error_category": "tool_error"},
        ),
        (failure(Category.INTERNAL_ERROR), "Internal server error", {"error_category": "internal_error"}),
        (
            failure(Category.TRAINER_PROTOCOL_ERROR, "not JSON"),
            "Invalid conversation state (possible context truncation): not JSON",
            {},
        ),
    ],
)
async def test_failures_are_answers(
    client: httpx.AsyncClient, worker: ScriptedWorker, failed: Failure, text: str, extra: dict[str, Any]
) -> None:
    response = await run(
        client,
        worker,
        v1_request(),
        status=RolloutStatus.FAILED,
        finish_reason=FinishReason.ERROR,
        failure=failed,
        messages=[Message(role="user", content="x")],
    )
    assert response.status_code == 200
    answer = response.json()
    assert list(answer) == RESPONSE_KEYS
    assert answer["status"] == "ERROR"
    assert answer["finish_reason"] is None
    assert answer["final_messages"] == []
    assert answer["error_message"] == text
    assert answer["extra_fields"] == extra
    assert answer["metrics"]["num_llm_calls"] == 1
    assert answer["metrics"]["max_context_tokens"] == 0


REJECTED: list[tuple[str, dict[str, Any], list[Any], str]] = [
    *[
        (f"without {field}", {field: ...}, ["body", field], "Field required")
        for field in ("rollout_id", "server_url", "messages", "sampling_params", "tokenizer_name")
    ],
    (
        "no messages",
        {"messages": []},
        ["body", "messages"],
        "List should have at least 1 item after validation, not 0",
    ),
    (
        "bad role",
        {"messages": [{"role": "robot", "content": "x"}]},
        ["body", "messages", 0, "role"],
        "Value error, Invalid role 'robot'. Must be one of: ['assistant', 'function', 'system', 'tool', 'user']",
    ),
    ("empty id", {"rollout_id": ""}, ["body", "rollout_id"], "Value error, rollout_id must be non-empty"),
    ("blank id", {"rollout_id": "  \t"}, ["body", "rollout_id"], "Value error, rollout_id must be non-empty"),
    (
        "long id",
        {"rollout_id": "x" * 257},
        ["body", "rollout_id"],
        "Value error, rollout_id must be at most 256 characters",
    ),
    (
        "ftp",
        {"server_url": "ftp://trainer"},
        ["body", "server_url"],
        "Value error, server_url must be an HTTP/HTTPS URL, got: ftp://trainer",
    ),
    ("no turns", {"max_turns": 0}, ["body", "max_turns"], "Input should be greater than or equal to 1"),
    ("many turns", {"max_turns": 101}, ["body", "max_turns"], "Input should be less than or equal to 100"),
    (
        "no tokens",
        {"max_tokens_total": 0},
        ["body", "max_tokens_total"],
        "Input should be greater than or equal to 1",
    ),
    (
        "many tokens",
        {"max_tokens_total": 1_000_001},
        ["body", "max_tokens_total"],
        "Input should be less than or equal to 1000000",
    ),
    (
        "hot",
        {"sampling_params": {"temperature": 2.1}},
        ["body", "sampling_params", "temperature"],
        "Input should be less than or equal to 2",
    ),
    (
        "cold",
        {"sampling_params": {"temperature": -0.1}},
        ["body", "sampling_params", "temperature"],
        "Input should be greater than or equal to 0",
    ),
    (
        "top_p",
        {"sampling_params": {"top_p": 1.1}},
        ["body", "sampling_params", "top_p"],
        "Input should be less than or equal to 1",
    ),
    (
        "max_tokens 0",
        {"sampling_params": {"max_tokens": 0}},
        ["body", "sampling_params", "max_tokens"],
        "Input should be greater than or equal to 1",
    ),
    (
        "max_tokens 32769",
        {"sampling_params": {"max_tokens": 32769}},
        ["body", "sampling_params", "max_tokens"],
        "Input should be less than or equal to 32768",
    ),
    (
        "string stop",
        {"sampling_params": {"stop": "x"}},
        ["body", "sampling_params", "stop"],
        "Input should be a valid list",
    ),
    (
        "sampling_params null",
        {"sampling_params": None},
        ["body", "sampling_params"],
        "Input should be a valid dictionary or object to extract fields from",
    ),
    (
        "tool call without id",
        {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "a", "arguments": "{}"}}]}]},
        ["body", "messages", 0, "tool_calls", 0, "id"],
        "Field required",
    ),
    (
        "empty tool name",
        {"messages": [{"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "", "arguments": "{}"}}]}]},
        ["body", "messages", 0, "tool_calls", 0, "function", "name"],
        "String should have at least 1 character",
    ),
    (
        "long tool_call_id",
        {"messages": [{"role": "tool", "content": "8", "tool_call_id": "x" * 257}]},
        ["body", "messages", 0, "tool_call_id"],
        "String should have at most 256 characters",
    ),
    ("list metadata", {"metadata": []}, ["body", "metadata"], "Input should be a valid dictionary"),
    (
        "integer content",
        {"messages": [{"role": "user", "content": 5}]},
        ["body", "messages", 0, "content", "str"],
        "Input should be a valid string",
    ),
]


@pytest.mark.parametrize(("changes", "loc", "message"), [case[1:] for case in REJECTED], ids=[c[0] for c in REJECTED])
async def test_rejections_are_fastapis(
    client: httpx.AsyncClient, changes: dict[str, Any], loc: list[Any], message: str
) -> None:
    response = await client.post("/rollout", json=v1_request(**changes))
    assert response.status_code == 422
    answer = response.json()
    assert list(answer) == ["detail"]
    first = answer["detail"][0]
    assert (first["loc"], first["msg"]) == (loc, message)
    assert {"type", "loc", "msg", "input"} <= set(first)


ACCEPTED: list[tuple[str, dict[str, Any]]] = [
    ("256-character id", {"rollout_id": "x" * 256}),
    ("id with slash and blank", {"rollout_id": "job/7 step é"}),
    ("unknown field", {"unknown": {"a": 1}}),
    ("role function", {"messages": [{"role": "function", "content": "x"}]}),
    ("100 turns", {"max_turns": 100}),
    ("tool server", {"tool_server_url": "http://tools"}),
    ("list content", {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}]}),
    ("null content", {"messages": [{"role": "user", "content": None}]}),
    ("unknown sampling keys", {"sampling_params": {"top_k": 5, "seed": 1}}),
    ("unknown strategy", {"metadata": {"termination_strategy": "nobody_has_it", "max_user_turns": "x"}}),
    ("private address", {"server_url": "http://10.0.0.1:8085///"}),
    ("empty key", {"callback_api_key": ""}),
    ("control character in id", {"rollout_id": "a\u0000b\nc"}),
]


@pytest.mark.parametrize("changes", [case[1] for case in ACCEPTED], ids=[case[0] for case in ACCEPTED])
async def test_accepted(client: httpx.AsyncClient, worker: ScriptedWorker, changes: dict[str, Any]) -> None:
    body = v1_request(**changes)
    response = await run(client, worker, body)
    assert response.status_code == 200
    assert response.json()["rollout_id"] == body["rollout_id"]


async def test_malformed_json_is_fastapis(client: httpx.AsyncClient) -> None:
    response = await client.post("/rollout", content=b'{"a": 1,}', headers={"content-type": "application/json"})
    assert response.status_code == 422
    assert response.json() == {
        "detail": [
            {
                "type": "json_invalid",
                "loc": ["body", 8],
                "msg": "JSON decode error",
                "input": {},
                "ctx": {"error": "Expecting property name enclosed in double quotes"},
            }
        ]
    }


async def test_a_body_without_content_type_is_json(client: httpx.AsyncClient) -> None:
    response = await client.post("/rollout", content=json.dumps(v1_request(messages=[])).encode())
    assert response.status_code == 422
    assert response.json()["detail"][0]["loc"] == ["body", "messages"]


async def test_methods_and_paths_keep_fastapis_shape(client: httpx.AsyncClient) -> None:
    response = await client.get("/rollout")
    assert response.status_code == 405
    assert response.json() == {"detail": "Method Not Allowed"}
