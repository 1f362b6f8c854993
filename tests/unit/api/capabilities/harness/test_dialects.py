"""The three dialects: what is written to a program, and given back by it, is read as what the policy has said."""

import json
import time
from collections.abc import Mapping
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from rolloutpool_api.capabilities.harness.dialects.base import AgentReply, CallRefused, Dialect
from rolloutpool_api.capabilities.harness.dialects.chat import ChatDialect
from rolloutpool_api.capabilities.harness.dialects.items import filled, named_replies
from rolloutpool_api.capabilities.harness.dialects.messages import MessagesDialect
from rolloutpool_api.capabilities.harness.dialects.responses import ResponsesDialect
from rolloutpool_common.capabilities.harness.given_calls import given_id
from rolloutpool_common.protocol.messages import TEXT_MESSAGES
from rolloutpool_worker.capabilities.harness.lines import Lines, shape_of

Message = dict[str, Any]
DIALECTS: Mapping[str, Dialect] = {
    "chat": ChatDialect(),
    "responses": ResponsesDialect(),
    "messages": MessagesDialect(),
}
FUNCTION = {"name": "shell", "description": "Runs it.", "parameters": {"type": "object", "properties": {}}}
TOOLS = {
    "chat": [{"type": "function", "function": FUNCTION}],
    "responses": [{"type": "function", **FUNCTION}],
    "messages": [{"name": "shell", "description": "Runs it.", "input_schema": FUNCTION["parameters"]}],
}
ALL = pytest.mark.parametrize("name", list(DIALECTS))

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
objects = st.dictionaries(st.text() | st.just("arguments"), json_values, max_size=3)
arguments = (
    objects.map(json.dumps)
    | json_values.map(lambda value: json.dumps(value, ensure_ascii=False))
    | st.text()
    | st.sampled_from(["", " ", "{", '{"a": NaN}', '{"a":1,"a":2}', '{"x": "\\ud800"}', "[" * 300 + "]" * 300, "\r\n"])
)
texts = st.text() | st.sampled_from(["", "\n\n", "a\r\nb", "  x  ", "é\u2028", "<|im_end|>"])


@st.composite
def policy_messages(draw: st.DrawFn) -> Message:
    """A turn of the policy."""
    calls = [
        {"id": f"own{place}", "type": "function", "function": {"name": "shell", "arguments": one}}
        for place, one in enumerate(draw(st.lists(arguments, max_size=3)))
    ]
    text, reasoning = draw(texts), draw(texts)
    more = {"reasoning_content": reasoning} if reasoning else {}
    return {"role": "assistant", "content": text or None, "tool_calls": calls or None, "tool_call_id": None, **more}


def reply_of(message: Message, n: int) -> AgentReply:
    """The reply as a worker keeps it, and a door reads it."""
    calls = [{**call, "id": given_id(n, place)} for place, call in enumerate(message["tool_calls"] or ())]
    stored = {
        "message": {**message, "tool_calls": calls},
        "finish_reason": "stop",
        "prompt_tokens": 1,
        "sampled_tokens": 1,
    }
    return AgentReply.of("b-0", n, 0, orjson.loads(orjson.dumps(stored)))


def as_javascript(value: Any) -> Any:
    """A value as a program in JavaScript writes it, which knows no other number than a double."""
    if isinstance(value, dict):
        return {key: as_javascript(one) for key, one in value.items()}
    if isinstance(value, list):
        return [as_javascript(one) for one in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e21:
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return int(float(value))
    return value


def written(name: str, reply: AgentReply, body: Mapping[str, Any], *, streamed: bool) -> list[dict[str, Any]]:
    """What a program makes of a reply, as items of its history."""
    dialect = DIALECTS[name]
    request = dialect.read(body, drop=False)
    if not streamed:
        whole = json.loads(json.dumps(dialect.whole(reply, request)))
        if name == "chat":
            return [whole["choices"][0]["message"]]
        return whole["output"] if name == "responses" else [{"role": "assistant", "content": whole["content"]}]
    events = [
        json.loads(line.removeprefix("data: "))
        for part in b"".join(dialect.events(reply, request)).decode().split("\n\n")
        for line in part.split("\n")
        if line.startswith("data: {")
    ]
    if name == "responses":
        return [event["item"] for event in events if event["type"] == "response.output_item.done"]
    if name == "chat":
        deltas = [choice["delta"] for event in events for choice in event["choices"]]
        calls = [{**call} for delta in deltas for call in delta.get("tool_calls") or ()]
        text = "".join(delta.get("content") or "" for delta in deltas)
        return [{"role": "assistant", "content": text, "tool_calls": calls}]
    blocks: list[dict[str, Any]] = []
    for event in events:
        if event["type"] == "content_block_start":
            blocks.append(dict(event["content_block"]))
        elif event["type"] == "content_block_delta":
            delta = dict(event["delta"])
            kind = delta.pop("type")
            if kind == "input_json_delta":
                blocks[-1]["input"] = json.loads(delta["partial_json"])
            for key in delta.keys() & {"text", "thinking", "signature"}:
                blocks[-1][key] = blocks[-1][key] + delta[key]
    return [{"role": "assistant", "content": blocks}]


def asked(name: str, history: list[dict[str, Any]]) -> dict[str, Any]:
    """A program's request, as a door reads its body: integers beyond 64 bits are floats then."""
    request = {"tools": TOOLS[name], "input" if name == "responses" else "messages": history}
    read: dict[str, Any] = orjson.loads(json.dumps(request))
    return read


def results(name: str, message: Message, n: int) -> list[dict[str, Any]]:
    """What the program's tools say to a turn, or what its user says."""
    ids = [given_id(n, place) for place, _ in enumerate(message["tool_calls"] or ())]
    if not ids:
        return [{"role": "user", "content": "go on"}]
    if name == "chat":
        return [{"role": "tool", "tool_call_id": id, "content": "done"} for id in ids]
    if name == "responses":
        return [{"type": "function_call_output", "call_id": id, "output": "done"} for id in ids]
    blocks = [{"type": "tool_result", "tool_use_id": id, "content": [{"type": "text", "text": "done"}]} for id in ids]
    return [{"role": "user", "content": blocks}]


SAID: Message = {"role": "assistant", "content": None, "tool_calls": None, "tool_call_id": None}
BIG = {"id": "own0", "type": "function", "function": {"name": "shell", "arguments": '{"":19000000000000000000}'}}


@ALL
@example(turns=[{**SAID, "tool_calls": [BIG]}, SAID], streamed=False, javascript=True, order="kept")
@example(turns=[{**SAID, "content": "a", "tool_calls": [BIG]}, SAID], streamed=False, javascript=False, order="named")
@given(
    turns=st.lists(policy_messages(), min_size=1, max_size=4),
    streamed=st.booleans(),
    javascript=st.booleans(),
    order=st.sampled_from(["kept", "interleaved", "named"]),
)
def test_what_a_program_gives_back_continues_its_line(
    name: str, turns: list[Message], streamed: bool, javascript: bool, order: str
) -> None:
    """Responses programs may put each result behind its call, or name items instead of sending them."""
    replies: dict[str, AgentReply] = {}
    history: list[dict[str, Any]] = [{"role": "user", "content": "hello"}]
    lines = Lines()
    for n, turn in enumerate(turns, 1):
        request = DIALECTS[name].read(asked(name, history), drop=False)
        assert set(named_replies(request.messages)) <= replies.keys()
        messages = filled(request.messages, replies)
        TEXT_MESSAGES.validate_python(messages)
        found = lines.find(n, n - 1, messages, "t" if request.tools else "")
        assert found.line.number == 1
        lines.answered(found.line, n, n, turn)
        reply = reply_of(turn, n)
        replies[reply.id] = reply
        given_back = written(name, reply, asked(name, history), streamed=streamed)
        if not given_back:
            # A reply that says nothing at all has no item in Responses, so it cannot come back.
            return
        answers = results(name, turn, n)
        said = as_javascript(given_back) if javascript else given_back
        if name == "responses" and order == "named":
            said = [{"type": "item_reference", "id": item["id"]} for item in said]
        interleaved = name == "responses" and order == "interleaved"
        history += _interleaved(said, answers) if interleaved else [*said, *answers]
    assert len(lines.all) == 1


def _interleaved(items: list[dict[str, Any]], answers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each call of a turn with its result behind it."""
    by_id = {one["call_id"]: one for one in answers if "call_id" in one}
    pairs = [[item, *([by_id[item["call_id"]]] if item.get("call_id") in by_id else [])] for item in items]
    return [*(one for pair in pairs for one in pair), *(one for one in answers if "call_id" not in one)]


@pytest.mark.parametrize(
    "named", ["msg_b-0-2", "fc_b-0-1_1", "fc_b-0-1", "fc_b-0-1_x", "msg_b-0-\u0663", "rs_", "call_1_0", "msg_" * 99]
)
def test_an_item_that_was_never_given_is_refused(named: str) -> None:
    """Also one whose reply was given, and has fewer calls."""
    call = {"id": "own", "type": "function", "function": {"name": "shell", "arguments": "{}"}}
    reply = reply_of({**SAID, "tool_calls": [call]}, 1)
    items = [{"role": "user", "content": "hello"}, {"id": named}]
    with pytest.raises(CallRefused, match="which this session has not given"):
        filled(DIALECTS["responses"].read(asked("responses", items), drop=False).messages, {reply.id: reply})


@ALL
def test_thinking_comes_back_or_not(name: str) -> None:
    """It is no part of a message's shape, and nothing of it is read."""
    turn = {"role": "assistant", "content": "yes", "tool_calls": None, "reasoning_content": "hm"}
    body = asked(name, [{"role": "user", "content": "hello"}])
    back = written(name, reply_of(turn, 1), body, streamed=False)
    read = DIALECTS[name].read(asked(name, [{"role": "user", "content": "hello"}, *back]), drop=False).messages
    assert [shape_of(one) for one in read[1:]] == [shape_of(turn)]
    assert "hm" not in str(read)


@ALL
def test_parts_of_text_are_one_text(name: str) -> None:
    kind = "input_text" if name == "responses" else "text"
    parts = [{"type": kind, "text": "a\r\n", "cache_control": {"type": "ephemeral"}}, {"type": kind, "text": "b"}]
    read = DIALECTS[name].read(asked(name, [{"role": "user", "content": parts}]), drop=False).messages
    assert read[0]["content"] == ("a\r\n\nb" if name == "messages" else "a\r\nb")


@pytest.mark.parametrize("given", [{"command": "ls"}, None], ids=["object", "null"])
def test_arguments_that_are_an_object_are_not_lost(given: object) -> None:
    call = {"id": "x", "type": "function", "function": {"name": "shell", "arguments": given}}
    history: list[dict[str, Any]] = [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "x", "content": "ok"},
    ]
    read = DIALECTS["chat"].read(asked("chat", history), drop=False).messages
    assert json.loads(read[1]["tool_calls"][0]["function"]["arguments"]) == (given or {})
    items = [history[0], {"type": "function_call", "call_id": "x", "name": "shell", "arguments": given}]
    read = DIALECTS["responses"].read(asked("responses", items), drop=False).messages
    assert json.loads(read[1]["tool_calls"][0]["function"]["arguments"]) == (given or {})


def test_arguments_that_are_nothing_of_the_kind_are_refused() -> None:
    call = {"id": "x", "type": "function", "function": {"name": "shell", "arguments": [1]}}
    with pytest.raises(CallRefused, match="neither text nor an object"):
        DIALECTS["chat"].read(asked("chat", [{"role": "assistant", "tool_calls": [call]}]), drop=False)


@pytest.mark.parametrize(
    ("name", "field", "hosted"),
    [
        ("chat", {"functions": [FUNCTION]}, False),
        ("chat", {"web_search_options": {}}, True),
        ("responses", {"conversation": "conv_1"}, False),
        ("responses", {"prompt": {"id": "pmpt_1"}}, False),
        ("messages", {"mcp_servers": [{"type": "url", "url": "https://tools"}]}, True),
    ],
)
def test_what_would_make_it_another_question_is_refused(name: str, field: dict[str, Any], hosted: bool) -> None:
    """These fields were left out, so the policy knew nothing of its tools, or of what was said before."""
    body = {**asked(name, [{"role": "user", "content": "hello"}]), **field}
    with pytest.raises(CallRefused, match=next(iter(field))):
        DIALECTS[name].read(body, drop=False)
    if hosted:
        assert DIALECTS[name].read(body, drop=True).messages


def test_calls_of_two_turns_stay_two_turns() -> None:
    """Only the ids that a session has given say which calls were one turn."""

    def items(first: str, second: str) -> list[dict[str, Any]]:
        return [
            {"role": "user", "content": "hello"},
            {"type": "function_call", "call_id": first, "name": "shell", "arguments": "{}"},
            {"type": "function_call_output", "call_id": first, "output": "ok"},
            {"type": "function_call", "call_id": second, "name": "shell", "arguments": "{}"},
            {"type": "function_call_output", "call_id": second, "output": "ok"},
        ]

    for first, second, roles in (
        ("call_1_0", "call_1_1", ["user", "assistant", "tool", "tool"]),
        ("call_1_0", "call_2_0", ["user", "assistant", "tool", "assistant", "tool"]),
        ("a", "b", ["user", "assistant", "tool", "assistant", "tool"]),
    ):
        read = DIALECTS["responses"].read(asked("responses", items(first, second)), drop=False).messages
        assert [one["role"] for one in read] == roles


def test_an_item_may_be_named_once() -> None:
    """What is filled in is never more than what the session has said."""
    items = [{"role": "user", "content": "hello"}, *[{"id": "msg_b-0-1"}, {"role": "user", "content": "go on"}] * 2]
    with pytest.raises(CallRefused, match="names 'msg_b-0-1' a second time"):
        DIALECTS["responses"].read(asked("responses", items), drop=False)


@pytest.mark.parametrize("kind", ["calls", "interleaved", "reasoning", "named"])
def test_a_turn_of_a_hundred_thousand_items_is_read_in_time(kind: str) -> None:
    """A door serves all others on the same loop: 40,000 items stopped it for three seconds, 160,000 for a minute."""
    call = {"type": "function_call", "name": "shell", "arguments": "{}"}
    items: list[dict[str, Any]] = [{"role": "user", "content": "hello"}]
    for n in range(100_000):
        if kind in ("calls", "interleaved"):
            items.append({**call, "call_id": f"call_1_{n}"})
        if kind == "interleaved":
            items.append({"type": "function_call_output", "call_id": f"call_1_{n}", "output": "ok"})
        if kind in ("reasoning", "named"):
            items.append({"type": "reasoning"} if kind == "reasoning" else {"id": f"fc_b-0-1_{n}"})
    own = {"id": "own", "type": "function", "function": {"name": "shell", "arguments": "{}"}}
    reply = reply_of({**SAID, "tool_calls": [own] * 100_000 if kind == "named" else [own]}, 1)
    started = time.monotonic()
    read = DIALECTS["responses"].read({"input": items}, drop=False)
    assert [one["role"] for one in filled(read.messages, {reply.id: reply})[:2]] == ["user", "assistant"]
    assert time.monotonic() - started < 5


# What stands in a message of some dialect, or nearly; a name of 257 characters is too long for a policy.
_WORDS = st.sampled_from(["", "a", "n" * 256, "n" * 257, None, 7])
_TYPES = st.sampled_from(
    [
        "text",
        "input_text",
        "function",
        "function_call",
        "function_call_output",
        "item_reference",
        "tool_use",
        "tool_result",
    ]
)
_NAMES = ["id", "call_id", "tool_call_id", "tool_use_id", "name", "namespace", "text"]
_NEARLY = st.recursive(
    st.dictionaries(st.sampled_from([*_NAMES, "content"]), _WORDS),
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            "role": st.sampled_from(["system", "user", "assistant", "tool", "developer", "narrator"]),
            "type": _TYPES,
            **dict.fromkeys(_NAMES, _WORDS),
            "content": _WORDS | st.lists(inner, max_size=2),
            "tool_calls": st.lists(inner, max_size=2),
            "function": inner,
            "arguments": json_values,
            "output": _WORDS,
        },
    ),
    max_leaves=4,
)


@ALL
# A busy machine draws slowly, and would be told that the test is to blame.
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    body=st.dictionaries(
        st.sampled_from(["messages", "input", "tools", "system", "instructions", "n"]),
        json_values | st.lists(_NEARLY, max_size=4),
    )
)
@example(body={"messages": [{"role": "tool", "tool_call_id": "n" * 257, "content": "x"}]})
@example(body={"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "n" * 257}]}]})
@example(body={"input": [{"type": "function_call_output", "call_id": "n" * 257, "output": "x"}]})
@example(body={"input": [{"type": "function_call", "call_id": "a", "name": "n" * 257, "arguments": "{}"}]})
def test_odd_requests_are_refused_or_read_as_messages_that_a_policy_can_be_asked_with(
    name: str, body: dict[str, Any]
) -> None:
    try:
        request = DIALECTS[name].read(body, drop=True)
        messages = filled(request.messages, {})
    except CallRefused:
        return
    TEXT_MESSAGES.validate_python(messages)
