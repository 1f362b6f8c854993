"""Whatever arrives, the answer is a 4xx that says what is wrong."""

import asyncio

import httpx
import orjson
import pytest
from structlog.testing import capture_logs
from tests.support.api_requests import batch, v1_request
from tests.support.inside_api import Api
from tests.support.scripted_worker import ScriptedWorker
from tests.support.waiting import until_true

JSON = {"content-type": "application/json"}


def with_metadata(value: str) -> dict[str, bytes]:
    """A document per route whose metadata is this JSON text."""
    marked = {"x": "@@"}
    v1, own = v1_request(metadata=marked), batch(1)
    own["rollouts"][0]["metadata"] = marked
    return {
        path: orjson.dumps(doc).replace(b'"@@"', value.encode())
        for path, doc in (("/rollout", v1), ("/v1/batches", own))
    }


BODIES: dict[str, bytes | str] = {
    # As JSON text of a field's value.
    "lone surrogate": r'"\ud800"',
    "NaN": "NaN",
    "infinity": "-Infinity",
    "overflow": "1e999",
    "integer beyond 64 bits": str(2**70),
    "integer of 5000 digits": "9" * 5000,
    "deep": "[" * 300 + "]" * 300,
    "bottomless": "[" * 100_000,
    "control character": '"\n"',
    # As a whole body.
    "nothing": b"",
    "blank": b"  ",
    "text": b"hello",
    "truncated": b'{"rollouts": [',
    "invalid utf-8": b'{"a": "\xff\xfe"}',
    "utf-16": '{"a": 1}'.encode("utf-16"),
    "byte order mark": b"\xef\xbb\xbf{}",
    "a list": b"[]",
    "null": b"null",
    "a number": b"1",
    "a string": b'"x"',
    "empty object": b"{}",
}


async def test_bodies_that_are_no_request(client: httpx.AsyncClient) -> None:
    for path in ["/rollout", "/v1/batches"]:
        for name, body in BODIES.items():
            content = with_metadata(body)[path] if isinstance(body, str) else body
            response = await client.post(path, content=content, headers=JSON)
            assert response.status_code in (400, 422), (path, name)
            answer = response.json()
            assert answer["detail"] if path == "/rollout" else answer["error"]["message"]


async def test_malformed_json_is_told_with_its_position(client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/batches", content=b'{\n  "rollouts": x}', headers=JSON)
    assert response.status_code == 400
    assert "line 2 column 15" in response.json()["error"]["message"]


async def test_a_repeated_key_is_refused_by_the_batch_api_alone(
    client: httpx.AsyncClient, worker: ScriptedWorker
) -> None:
    own = orjson.dumps(batch(1)).replace(b'"role":', b'"role":"system","role":', 1)
    response = await client.post("/v1/batches", content=own, headers=JSON)
    assert response.status_code == 400
    assert "the key 'role' occurs twice" in response.json()["error"]["message"]
    request = v1_request()
    v1 = orjson.dumps(request).replace(b'"role":', b'"role":"system","role":', 1)
    asked = asyncio.create_task(client.post("/rollout", content=v1, headers=JSON))
    await worker.end_named(request["rollout_id"])
    assert (await asked).status_code == 200


async def test_other_content_types(client: httpx.AsyncClient) -> None:
    for kind in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "/", ";"]:
        own = await client.post("/v1/batches", content=orjson.dumps(batch()), headers={"content-type": kind})
        assert own.status_code == 415
        assert "application/json" in own.json()["error"]["message"]
        v1 = await client.post("/rollout", content=b"\xff\x00", headers={"content-type": kind})
        assert v1.status_code == 422


async def test_json_with_a_suffix_or_charset_is_json(client: httpx.AsyncClient, worker: ScriptedWorker) -> None:
    for kind in ("application/json; charset=utf-8", "APPLICATION/JSON", "application/vnd.api+json"):
        response = await client.post("/v1/batches", content=orjson.dumps(batch()), headers={"content-type": kind})
        assert response.status_code == 202


async def test_idempotency_keys_have_a_length(client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/batches", json=batch(), headers={"Idempotency-Key": "x" * 256})
    assert response.status_code == 422
    assert response.json()["error"]["faults"][0]["path"] == "header.idempotency-key"


async def test_unknown_paths_and_methods(client: httpx.AsyncClient) -> None:
    unknown = await client.get("/v2/batches")
    assert (unknown.status_code, list(unknown.json())) == (404, ["error"])
    method = await client.put("/v1/preflight")
    assert (method.status_code, list(method.json())) == (405, ["error"])
    assert method.headers["allow"] == "POST"
    assert method.json()["error"]["message"] == "this path does not take PUT; it takes POST"
    several = await client.put("/v1/batches")
    assert several.headers["allow"] == "GET, POST"


async def test_a_body_that_is_not_called_json_is_told_what_to_be(client: httpx.AsyncClient) -> None:
    for where in ("/v1/runs/a/policy_version", "/v1/preflight"):
        method = "POST" if where.endswith("preflight") else "PUT"
        response = await client.request(method, where, content=b"{}", headers={"content-type": "text/plain"})
        assert response.status_code == 422
        assert "Content-Type: application/json" in response.json()["error"]["faults"][0]["message"]


async def test_a_caller_that_leaves_in_mid_body_is_one_line(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    for framing in ["Content-Length: 1000\r\n\r\n{", "Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n"]:
        for path in ["/v1/batches", "/rollout", "/v1/preflight"]:
            with capture_logs() as logged:
                _, sender = await asyncio.open_connection("127.0.0.1", int(api.url.rpartition(":")[2]))
                sender.write(
                    f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n{framing}".encode()
                )
                await sender.drain()
                await asyncio.sleep(0.1)
                sender.close()
                await until_true(lambda: any(line["event"] == "caller left in mid-body" for line in logged))
                await asyncio.sleep(0.1)
            lines = [line for line in logged if line["event"] not in ("redis setting", "reconciled")]
            assert lines == [{"event": "caller left in mid-body", "log_level": "info", "path": path, "received": 1}]
            assert [record for record in caplog.records if record.exc_info] == []


async def test_a_parameter_that_is_none_of_a_path_is_refused_and_those_that_are_named(
    client: httpx.AsyncClient,
) -> None:
    described = (await client.get("/openapi.json")).json()["paths"]
    asked = 0
    for path, methods in described.items():
        for method, about in methods.items():
            known = [one["name"] for one in about.get("parameters", ()) if one["in"] == "query"]
            answer = await client.request(method, path.replace("{", "").replace("}", ""), params={"limt": "5"})
            if not path.startswith("/v1/"):
                # Probes and protocol v1's clients may send what they like.
                assert "limt" not in answer.text
                continue
            assert answer.status_code == 422, (method, path)
            said = f"is no parameter of this path; it takes {', '.join(known) or 'none'}"
            assert answer.json()["error"]["faults"] == [{"path": "query.limt", "message": said}]
            asked += 1
    assert asked > 30
