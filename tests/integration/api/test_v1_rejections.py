"""What protocol v1 takes and refuses, and the words of each refusal, which are FastAPI's."""

import json
from typing import Any

import httpx
from tests.support.api_requests import v1_request
from tests.support.scripted_worker import ScriptedWorker, run_v1

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


async def test_rejections_are_fastapis(client: httpx.AsyncClient) -> None:
    for changes, loc, message in [case[1:] for case in REJECTED]:
        response = await client.post("/rollout", json=v1_request(**changes))
        assert response.status_code == 422, changes
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
    assert response.json() == {"detail": "Method Not Allowed"}
