"""What protocol v1 takes and refuses, and the words of each refusal, which are FastAPI's."""

import json
from typing import Any

import httpx
from tests.support.api_requests import v1_request
from tests.support.scripted_worker import ScriptedWorker, run_v1

SAMPLING: list[tuple[str, Any, str]] = [
    ("temperature", 2.1, "Input should be less than or equal to 2"),
    ("temperature", -0.1, "Input should be greater than or equal to 0"),
    ("top_p", 1.1, "Input should be less than or equal to 1"),
    ("max_tokens", 0, "Input should be greater than or equal to 1"),
    ("max_tokens", 32769, "Input should be less than or equal to 32768"),
    ("stop", "x", "Input should be a valid list"),
]
REJECTED: list[tuple[dict[str, Any], str, str]] = [
    *[
        ({field: ...}, field, "Field required")
        for field in ("rollout_id", "server_url", "messages", "sampling_params", "tokenizer_name")
    ],
    ({"messages": []}, "messages", "List should have at least 1 item after validation, not 0"),
    (
        {"messages": [{"role": "robot", "content": "x"}]},
        "messages.0.role",
        "Value error, Invalid role 'robot'. Must be one of: ['assistant', 'function', 'system', 'tool', 'user']",
    ),
    ({"rollout_id": ""}, "rollout_id", "Value error, rollout_id must be non-empty"),
    ({"rollout_id": "  \t"}, "rollout_id", "Value error, rollout_id must be non-empty"),
    ({"rollout_id": "x" * 257}, "rollout_id", "Value error, rollout_id must be at most 256 characters"),
    (
        {"server_url": "ftp://trainer"},
        "server_url",
        "Value error, server_url must be an HTTP/HTTPS URL, got: ftp://trainer",
    ),
    ({"max_turns": 0}, "max_turns", "Input should be greater than or equal to 1"),
    ({"max_turns": 101}, "max_turns", "Input should be less than or equal to 100"),
    ({"max_tokens_total": 0}, "max_tokens_total", "Input should be greater than or equal to 1"),
    ({"max_tokens_total": 1_000_001}, "max_tokens_total", "Input should be less than or equal to 1000000"),
    *[({"sampling_params": {name: value}}, f"sampling_params.{name}", said) for name, value, said in SAMPLING],
    (
        {"sampling_params": None},
        "sampling_params",
        "Input should be a valid dictionary or object to extract fields from",
    ),
    (
        {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "a", "arguments": "{}"}}]}]},
        "messages.0.tool_calls.0.id",
        "Field required",
    ),
    (
        {"messages": [{"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "", "arguments": "{}"}}]}]},
        "messages.0.tool_calls.0.function.name",
        "String should have at least 1 character",
    ),
    (
        {"messages": [{"role": "tool", "content": "8", "tool_call_id": "x" * 257}]},
        "messages.0.tool_call_id",
        "String should have at most 256 characters",
    ),
    ({"metadata": []}, "metadata", "Input should be a valid dictionary"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content.str", "Input should be a valid string"),
]


async def test_rejections_are_fastapis(client: httpx.AsyncClient) -> None:
    for changes, where, message in REJECTED:
        response = await client.post("/rollout", json=v1_request(**changes))
        assert response.status_code == 422, changes
        answer = response.json()
        assert list(answer) == ["detail"]
        first = answer["detail"][0]
        place, *path = first["loc"]
        assert (place, ".".join(map(str, path)), first["msg"]) == ("body", where, message)
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


async def test_accepted(client: httpx.AsyncClient, worker: ScriptedWorker) -> None:
    for name, changes in ACCEPTED:
        body = v1_request(**{"rollout_id": name, **changes})
        response = await run_v1(client, worker, body)
        assert response.status_code == 200, changes
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
    assert response.json() == {"detail": "this path does not take GET; it takes POST"}
