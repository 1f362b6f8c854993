"""How a controller of the Osmosis wire is asked for a turn, and what is read of its reply."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import orjson
import pytest
from tests.support.chat_server import ASK, KEY, ChatServer, chat_server
from tests.support.conversations import claim_of

from rolloutpool_common.errors import TrainerProtocolError, TrainerUnreachable
from rolloutpool_common.security.targets import Targets
from rolloutpool_worker.capabilities.osmosis.channel import ChatChannel, parse_chat_reply
from rolloutpool_worker.policy.asking import Asking
from rolloutpool_worker.policy.body import MessageBytes
from rolloutpool_worker.policy.breaker import FAILURES, Breakers, TrainerDown
from rolloutpool_worker.policy.callback import TurnCall
from rolloutpool_worker.policy.endpoint import ReplyLimits
from rolloutpool_worker.policy.http1 import Http1Client
from rolloutpool_worker.policy.resolver import Resolver
from rolloutpool_worker.policy.turn_client import TurnClient

NORMAL = {"content": None, "tool_calls": None, "tool_call_id": None}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {}}}


@pytest.fixture(scope="module")
def server() -> Iterator[ChatServer]:
    with chat_server() as made:
        yield made


@pytest.fixture
async def client() -> AsyncIterator[TurnClient]:
    made = Http1Client(Resolver(Targets.loopback()), timeout=5)
    yield made
    await made.aclose()


async def no_pause(seconds: float) -> None:
    """Waits for nothing."""


def channel_to(url: str, client: TurnClient, breakers: Breakers | None = None, **options: Any) -> ChatChannel:
    spec = claim_of(server_url=url, messages_only=True, tokenizer_name="", idempotent=True, **options).spec
    limits = ReplyLimits(1_000_000)
    return ChatChannel(Asking(client, spec, "b-0", 2, 3, limits, no_pause, breakers or Breakers()))


async def test_a_turn_is_asked_as_openai_s_clients_ask(server: ChatServer, client: TurnClient) -> None:
    channel = channel_to(server.url("one"), client, callback_api_key=KEY)
    channel.shown = [TOOL]
    messages = [{**NORMAL, **ASK}]
    reply = await channel.sample(TurnCall(1, channel.body(MessageBytes(messages), 0)))
    assert server.of("one") == [{"model": "default", "messages": [ASK], "tools": [TOOL]}]
    assert server.keys[-1] == "b-0/1"
    (call,) = reply.message["tool_calls"]
    assert call["function"] == {"name": "add", "arguments": '{"a":15,"b":23}'}
    # In normal form, like every message; the controller's own keys are kept.
    assert (reply.message["content"], reply.message["refusal"], reply.finish_reason) == (None, None, "tool_calls")
    assert (reply.token_ids, reply.logprobs, reply.prompt_token_ids) == ([], [], None)


def test_a_body_has_no_nulls_no_empty_list_and_text_for_arguments(client: TurnClient) -> None:
    channel = channel_to("http://127.0.0.1:9/v1", client, sampling_params={"temperature": 0.5, "seed": 1})
    calls = [
        {"id": "1", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}},
        {"id": "2", "type": "function", "function": {"name": "add", "arguments": "{}"}},
    ]
    messages: list[dict[str, Any]] = [
        {**NORMAL, **ASK},
        {**NORMAL, "role": "assistant", "tool_calls": calls, "reasoning_content": "hm"},
        {**NORMAL, "role": "tool", "content": "", "tool_call_id": "1"},
    ]
    body = orjson.loads(channel.body(MessageBytes(messages), 2).data)
    assert list(body) == ["model", "messages"]
    assert body["messages"][1]["tool_calls"][0]["function"]["arguments"] == '{"a":1}'
    assert body["messages"][1]["tool_calls"][1]["function"]["arguments"] == "{}"
    assert body["messages"][1].keys() == {"role", "tool_calls", "reasoning_content"}
    assert body["messages"][2] == {"role": "tool", "content": "", "tool_call_id": "1"}


def test_the_digest_tells_bodies_apart(client: TurnClient) -> None:
    channel = channel_to("http://127.0.0.1:9/v1", client)
    wire = MessageBytes([{**NORMAL, **ASK}])
    first = channel.body(wire, 0)
    assert channel.body(wire, 0) == first
    channel.shown = [TOOL]
    assert channel.body(wire, 0).digest != first.digest


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (b"<html>", "not JSON"),
        (b"[]", "no chat completion"),
        (b'{"choices": []}', "choices: List should have at least 1 item"),
        (b'{"choices": [{"index": 0}]}', "choices.0.message"),
        (b'{"choices": [{"message": {"role": "user", "content": "x"}}]}', "role user, not assistant"),
        (b'{"choices": [{"message": {"role": "assistant", "content": 5}}]}', "choices.0.message.content"),
        (b'{"choices": [{"message": {"role": "assistant", "tool_calls": [{"type": "x"}]}}]}', "tool_calls.0"),
        (b'{"error": {"message": "no"}}', "choices: Field required"),
        (
            b'{"choices": [{"message": {"role": "assistant", "content": [{"type": "image", "data": "base64"}]}}]}',
            "choices.0.message.content.0: type image; only text is supported",
        ),
    ],
)
def test_nonsense_is_refused_with_its_place(reply: bytes, said: str) -> None:
    with pytest.raises(TrainerProtocolError, match="turn 1 at x: ") as caught:
        parse_chat_reply(reply, {}, "turn 1 at x")
    assert said in caught.value.message
    assert "base64" not in caught.value.message


async def test_the_breaker_counts_the_port_and_not_each_rollout_s_url(client: TurnClient) -> None:
    breakers = Breakers()
    turn = MessageBytes([{**NORMAL, **ASK}])
    for number in range(FAILURES):
        channel = channel_to(f"http://127.0.0.1:9/v1/rollouts/{number}", client, breakers)
        with pytest.raises((TrainerUnreachable, TrainerDown)):
            await channel.sample(TurnCall(1, channel.body(turn, 0)))
    other = channel_to("http://127.0.0.1:9/v1/rollouts/another", client, breakers)
    with pytest.raises(TrainerDown):
        await other.sample(TurnCall(1, other.body(turn, 0)))
