"""How a program asks, besides its messages: by the reply that it goes on from, and with its own sampling parameters."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.harness import DoorProcess, LedPolicy, Program, assert_all_once, client
from tests.support.open_sessions import opened
from tests.support.pool import Pool

from rolloutpool_common.rendering import ChatTokenizer
from rolloutpool_trainer.endpoint.app import callback_app
from rolloutpool_trainer.endpoint.policy import GenerateParams, Generation
from rolloutpool_trainer.endpoint.server import serve_callback

TOOL = {"type": "function", "name": "shell", "parameters": {"type": "object", "properties": {}}}


class AskedPolicy(LedPolicy):
    """Remembers how it was to sample."""

    def __init__(self, tokenizer: ChatTokenizer) -> None:
        super().__init__(tokenizer)
        self.asked: list[GenerateParams] = []

    async def __call__(self, prompt_ids: list[int], params: GenerateParams) -> Generation:
        self.asked.append(params)
        return await super().__call__(prompt_ids, params)


@pytest.fixture
def asked(tokenizer: ChatTokenizer) -> AskedPolicy:
    return AskedPolicy(tokenizer)


@pytest.fixture
def asked_url(asked: AskedPolicy, tokenizer: ChatTokenizer) -> Iterator[str]:
    with serve_callback(callback_app(asked, tokenizer=tokenizer), [0]) as served:
        yield served.url


async def test_a_program_may_name_the_reply_instead_of_sending_its_history(
    pool: Pool, door: DoorProcess, led: LedPolicy, led_url: str
) -> None:
    """Two equal beginnings, each continued by name: their texts alone could not tell them apart."""
    session, before = await opened(pool, door, led_url), len(led.sampled)
    async with client(session.url, session.key) as calls:

        async def ask(said: Any, **more: Any) -> dict[str, Any]:
            body = {"model": "any", "input": said, "instructions": "You are a program.", "tools": [TOOL], **more}
            answer = await calls.post("/v1/responses", json=body)
            assert answer.is_success, answer.text
            found: dict[str, Any] = answer.json()
            return found

        first, second = [await ask("do 0") for _ in range(2)]
        # The second goes on first, and in its line; then the first.
        later = await ask("and now", previous_response_id=second["id"])
        await ask("and now", previous_response_id=first["id"])
        called = await ask("do 1", previous_response_id=later["id"])
        (call,) = called["output"]
        output = {"type": "function_call_output", "call_id": call["call_id"], "output": "0"}
        ended = await ask([output], previous_response_id=called["id"])
        assert ended["output"][0]["content"][0]["text"].startswith("Said after 1")
        for unknown in (
            "resp_nobody-1",
            f"resp_{session.uid}-99",
            f"resp_{session.uid}-0",
            f"resp_{session.uid}-\u0663",
        ):
            refused = await calls.post("/v1/responses", json={"input": "x", "previous_response_id": unknown})
            assert (refused.status_code, refused.json()["error"]["type"]) == (400, "invalid_request_error")
    result = await session.end()
    report = result.harness
    assert report is not None
    assert sorted((line.kind, line.turns, line.parent) for line in report.lines) == [("child", 2, 2), ("main", 4, None)]
    # The two lines begin alike, so the last reply of the one that did not go on is left out.
    assert sum(line.tokens for line in report.lines) == sum(map(len, led.sampled[before:]))
    assert [message.role for message in result.messages][:2] == ["system", "user"]


class NamingProgram(Program):
    """Names the items of a reply instead of sending them, as Vercel's AI SDK does."""

    def take(self, reply: list[dict[str, Any]]) -> tuple[str, list[tuple[str, str]]]:
        known = len(self.history)
        taken = super().take(reply)
        self.history[known:] = [{"type": "item_reference", "id": item["id"]} for item in self.history[known:]]
        return taken


async def test_a_program_may_name_items_instead_of_sending_them(
    pool: Pool, door: DoorProcess, led: LedPolicy, led_url: str
) -> None:
    session, before = await opened(pool, door, led_url), len(led.sampled)
    program = NamingProgram(session.url, session.key, "responses")
    assert (await program.run("do 2")).startswith("Said after 2")
    assert (await program.run("do 1")).startswith("Said after 1")
    async with client(session.url, session.key) as calls:
        for unknown in ("msg_nobody-1", f"msg_{session.uid}-99", f"fc_{session.uid}-1_7", "item 1"):
            items = [{"type": "item_reference", "id": unknown}, {"role": "user", "content": "do 0"}]
            refused = await calls.post("/v1/responses", json={"input": items})
            assert (refused.status_code, refused.json()["error"]["type"]) == (400, "invalid_request_error")
    result = await session.end()
    assert len(result.samples) == 1
    assert_all_once(result, led.sampled[before:])


async def test_new_instructions_take_the_place_of_the_old_ones(
    pool: Pool, door: DoorProcess, asked: AskedPolicy, asked_url: str
) -> None:
    session = await opened(pool, door, asked_url)
    async with client(session.url, session.key) as calls:
        first = (await calls.post("/v1/responses", json={"input": "do 0", "instructions": "Be short."})).json()
        for instructions in ("Be long.", None):
            body = {"input": "do 0", "instructions": instructions, "previous_response_id": first["id"]}
            assert (await calls.post("/v1/responses", json=body)).is_success
    systems = [one.messages[0]["content"] for one in asked.asked]
    assert systems == ["Be short.", "Be long.", "Be short."]
    assert [len(one.messages) for one in asked.asked] == [2, 4, 4]
    await session.end()


async def test_an_address_may_have_the_version_or_not(pool: Pool, door: DoorProcess, led_url: str) -> None:
    """OpenAI's SDKs want it in the address, Anthropic's write it themselves, and people mix them up."""
    session = await opened(pool, door, led_url)
    body = {"model": "any", "messages": [{"role": "user", "content": "do 0"}], "max_tokens": 64}
    async with client(session.url, session.key) as calls:
        for path in ("/chat/completions", "/messages"):
            for version in ("", "/v1", "/v1/v1", "//v1"):
                assert (await calls.post(f"{version}{path}", json=body)).is_success
        assert (await calls.get("/models")).json()["data"][0]["id"] == "policy"
        assert (await calls.head("/")).is_success
        unknown = await calls.post("/v1/v10/messages", json=body)
    assert unknown.status_code == 404
    assert "/chat/completions" in unknown.json()["error"]["message"]
    await session.end()


async def test_half_a_character_is_read_as_none(
    pool: Pool, door: DoorProcess, asked: AskedPolicy, asked_url: str
) -> None:
    """JavaScript cuts texts between the halves of a character, and writes such a half as an escape."""
    session = await opened(pool, door, asked_url)
    cut = rb"do 0 \ud83d\ude00 \ud83d, \ude00, \\\ud83d\ud83d, \\ud83d \\\\ude00\ude00 \u00e9"
    body = b'{"model": "any", "messages": [{"role": "user", "content": "%s"}]}' % cut
    async with client(session.url, session.key) as calls:
        assert (await calls.post("/v1/chat/completions", content=body)).is_success
        for broken in (body[:-1], body.replace(b'"any"', b"NaN"), b'["\\ud83d",' + b"[" * 100_000):
            refused = await calls.post("/v1/chat/completions", content=broken)
            assert refused.json()["error"]["message"] == "the request is no JSON"
    assert asked.asked[0].messages[0]["content"] == "do 0 😀 \ufffd, \ufffd, \\\ufffd\ufffd, \\ud83d \\\\ude00\ufffd é"
    await session.end()


async def test_a_client_may_offer_http_2(pool: Pool, door: DoorProcess, led_url: str) -> None:
    """Java's does with each request, also those of a connection that is kept."""
    session = await opened(pool, door, led_url)
    body = {"model": "any", "messages": [{"role": "user", "content": "do 0"}]}
    offer = {"connection": "Upgrade, HTTP2-Settings", "upgrade": "h2c", "http2-settings": "AAEAAEAAAAIAAAAB"}
    async with client(session.url, session.key) as calls:
        for _ in range(2):
            assert (await calls.post("/v1/chat/completions", json=body, headers=offer)).is_success
    await session.end()


async def test_tokens_are_counted_and_nothing_is_sampled(
    pool: Pool, door: DoorProcess, led: LedPolicy, led_url: str, tokenizer: ChatTokenizer
) -> None:
    """The count is what the policy's prompt has, and asking is no line of talk."""
    session, before = await opened(pool, door, led_url), len(led.sampled)
    schema = {"type": "object", "properties": {"command": {"type": "string"}}}
    tools = [{"name": "shell", "description": "Runs a command.", "input_schema": schema}]
    body = {"system": "You are a program.", "messages": [{"role": "user", "content": "do 0"}], "tools": tools}
    async with client(session.url, session.key) as calls:
        counted = [(await calls.post("/v1/messages/count_tokens", json=body)).json() for _ in range(2)]
        assert len(led.sampled) == before
        said = (await calls.post("/v1/messages", json={**body, "max_tokens": 512})).json()
        refused = await calls.post("/v1/messages/count_tokens", json={"messages": []})
    assert refused.status_code == 400
    assert counted == [{"input_tokens": said["usage"]["input_tokens"]}] * 2
    result = await session.end()
    assert result.harness is not None
    assert [(line.kind, line.turns) for line in result.harness.lines] == [("main", 1)]
    (sample,) = result.samples
    assert len(sample.prompt_ids) == counted[0]["input_tokens"]
    assert [way.calls for way in result.harness.asked] == [[3]]


@pytest.mark.parametrize("whose", ["rollout", "agent"])
async def test_a_program_s_own_sampling_parameters_count_where_the_rollout_says_so(
    pool: Pool, door: DoorProcess, asked: AskedPolicy, asked_url: str, whose: str
) -> None:
    """They may change within a line, which stays one sample."""
    session = await opened(pool, door, asked_url, sampling=whose)
    history: list[dict[str, Any]] = []
    async with client(session.url, session.key) as calls:
        for temperature, length in ((0.5, 64), (0.25, 100_000), (None, None)):
            history.append({"role": "user", "content": "do 0"})
            own = {"temperature": temperature, "max_tokens": length, "stop": "never"} if length else {}
            body = {"model": "any", "messages": history, "user": "somebody", **own}
            answer = (await calls.post("/v1/chat/completions", json=body)).json()
            history.append(answer["choices"][0]["message"])
        history.append({"role": "user", "content": "do 0"})
        wrong = await calls.post("/v1/chat/completions", json={"messages": history, "temperature": "hot"})
        assert wrong.status_code == (400 if whose == "agent" else 200)
    found = [(one.temperature, one.max_tokens, one.stop) for one in asked.asked[:3]]
    rest = (1.0, 512, None)
    theirs = [(0.5, 64, ["never"]), (0.25, 32_768, ["never"]), rest]
    assert found == (theirs if whose == "agent" else [rest] * 3)
    result = await session.end()
    assert_all_once(result, asked.sampled)
    assert len(result.samples) == 1
    assert result.harness is not None
    ways = result.harness.asked
    assert [(way.dialect, way.fields.get("temperature"), way.calls) for way in ways[:3]] == [
        ("chat completions", 0.5, [1]),
        ("chat completions", 0.25, [2]),
        ("chat completions", None, [3]),
    ]
    assert ways[0].fields["user"] == "somebody"
    assert "messages" not in ways[0].fields
