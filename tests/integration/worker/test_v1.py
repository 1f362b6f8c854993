"""Protocol v1 on the wire between worker and trainer: the body, the headers, the numbers, the trace."""

from typing import Any

import orjson
from tests.support.pool import Pool
from tests.support.scripted_trainer import ScriptedTrainer, scripted_trainer
from tests.support.trainer_script import Exchange, call, say

from rolloutpool_common.protocol.result import RolloutResult
from rolloutpool_common.protocol.v1.response import to_v1
from rolloutpool_common.rendering import ChatTokenizer

KEYS = ["model", "messages", "rollout_id", "temperature", "top_p", "max_tokens", "stop", "logprobs", "response_mask"]
TWO = [call("add", {"a": 5, "b": 3}, "c1"), call("divide", '{"a": 1, "b": 0}', "c2")]
TURNS = (say("adding", TWO), say("8, it is"))


async def run(pool: Pool, trainer: ScriptedTrainer, **spec: Any) -> tuple[RolloutResult, list[Exchange]]:
    (result,) = await pool.run([{"v1": True, **spec}], shared={"server_url": trainer.url})
    return result, trainer.of(result.uid)


async def test_the_body_has_exactly_nine_keys_in_their_order(pool: Pool, tokenizer: ChatTokenizer) -> None:
    async with scripted_trainer(tokenizer, *TURNS) as trainer:
        _, requests = await run(
            pool,
            trainer,
            rollout_id="job7-step12-idx3-9f2c",
            sampling_params={"temperature": 0.25, "top_p": 0.5, "max_tokens": 77, "stop": ["\n\n"], "logprobs": False},
        )
    assert len(requests) == 2
    for request in requests:
        assert list(request.document) == KEYS
    first = requests[0].document
    assert first["model"] == "default"
    assert first["rollout_id"] == "job7-step12-idx3-9f2c"
    assert [first[key] for key in KEYS[3:]] == [0.25, 0.5, 77, ["\n\n"], False, None]


async def test_absent_parameters_are_sent_as_the_protocol_s_defaults(pool: Pool, tokenizer: ChatTokenizer) -> None:
    async with scripted_trainer(tokenizer, say()) as trainer:
        _, (request,) = await run(pool, trainer)
    assert [request.document[key] for key in KEYS[3:]] == [1.0, 1.0, 512, None, True, None]
    assert b'"stop":null' in request.content
    assert b'"response_mask":null' in request.content


async def test_messages_travel_in_normal_form_and_history_only_grows(pool: Pool, tokenizer: ChatTokenizer) -> None:
    messages = [
        {"role": "system", "content": "Be brief", "vendor": {"x": 1}},
        {"content": "Calculate 5 + 3", "name": "ada", "role": "user"},
    ]
    async with scripted_trainer(tokenizer, *TURNS) as trainer:
        result, requests = await run(pool, trainer, messages=messages)
    sent = requests[1].document["messages"]
    assert [list(message)[:4] for message in sent] == [["role", "content", "tool_calls", "tool_call_id"]] * 5
    assert sent[0] == {
        "role": "system",
        "content": "Be brief",
        "tool_calls": None,
        "tool_call_id": None,
        "vendor": {"x": 1},
    }
    assert sent[1]["name"] == "ada"
    # Arguments keep the type that they came with.
    assert [made["function"]["arguments"] for made in sent[2]["tool_calls"]] == [{"a": 5, "b": 3}, '{"a": 1, "b": 0}']
    assert [(m["role"], m["content"], m["tool_call_id"]) for m in sent[3:]] == [
        ("tool", "8", "c1"),
        ("tool", "Error: Division by zero", "c2"),
    ]
    assert sent[:2] == requests[0].document["messages"]
    assert [message.wire() for message in result.messages][:5] == sent


async def test_the_bearer_key_is_sent_only_where_there_is_one(pool: Pool, tokenizer: ChatTokenizer) -> None:
    async with scripted_trainer(tokenizer, say()) as trainer:
        for key, header in (("s3cret", "Bearer s3cret"), ("ключ", "Bearer ключ"), ("", None), (None, None)):
            _, (request,) = await run(pool, trainer, callback_api_key=key)
            sent = request.header("authorization")
            assert (None if sent is None else sent.encode("latin-1").decode()) == header
            assert request.header("content-type") == "application/json"


async def test_the_eight_numbers(pool: Pool, tokenizer: ChatTokenizer) -> None:
    async with scripted_trainer(tokenizer, *TURNS) as trainer:
        result, _ = await run(pool, trainer)
        (sample,) = trainer.app.get_session(result.rollout_id, result.uid).samples
    metrics = to_v1(result, tokenizer_name="t", timeout_seconds=600.0).metrics
    assert metrics is not None
    sampled = sum(sample.response_mask)
    first = sample.segments[0].n
    second = len(sample.response_ids) - sample.segments[-1].n
    assert (metrics.num_llm_calls, metrics.num_tool_calls) == (2, 2)
    assert metrics.response_tokens == metrics.max_context_tokens == sampled
    assert metrics.prompt_tokens == 2 * len(sample.prompt_ids) + second
    assert result.max_context_tokens == len(sample.prompt_ids) + len(sample.response_ids)
    assert first < sampled
    assert 0 < metrics.llm_latency_ms + metrics.tool_latency_ms <= metrics.total_latency_ms


async def test_the_debug_trace(pool: Pool, tokenizer: ChatTokenizer) -> None:
    async with scripted_trainer(tokenizer, *TURNS) as trainer:
        result, requests = await run(pool, trainer, metadata={"debug_trace": True})
        silent, _ = await run(pool, trainer, metadata={"debug_trace": 0})
        dropped, _ = await run(pool, trainer, metadata={"debug_trace": "yes"}, max_tokens_total=1)
    answer = to_v1(result, tokenizer_name="t", timeout_seconds=600.0)
    trace = answer.extra_fields["trace"]
    assert [list(entry) for entry in trace] == [
        ["turn", "llm_request", "assistant_message", "tool_calls", "tool_results", "llm_response_token_count"]
    ] * 2
    assert [entry["turn"] for entry in trace] == [1, 2]
    assert [list(entry["llm_request"]) for entry in trace] == [["prompt_length", "response_mask_len"]] * 2
    masks = [request.document["response_mask"] for request in requests]
    assert [entry["llm_request"]["response_mask_len"] for entry in trace] == [None, len(masks[1])]
    assert sum(entry["llm_response_token_count"] for entry in trace) == result.response_tokens
    assert [len(entry["tool_calls"]) for entry in trace] == [2, 0]
    assert [message["content"] for message in trace[0]["tool_results"]] == ["8", "Error: Division by zero"]
    assert trace[1]["assistant_message"]["content"] == "8, it is"
    # It must survive as JSON.
    orjson.dumps(trace)
    assert to_v1(silent, tokenizer_name="t", timeout_seconds=600.0).extra_fields == {}
    # The turn that reached max_tokens is not in it.
    assert to_v1(dropped, tokenizer_name="t", timeout_seconds=600.0).extra_fields == {"trace": []}


async def test_the_calculator_s_texts_are_the_protocol_s_own(pool: Pool, tokenizer: ChatTokenizer) -> None:
    cases: list[tuple[str, Any, str]] = [
        ("add", {"a": 5, "b": 3}, "8"),
        ("add", {"a": 5.0, "b": 3}, "8.0"),
        ("subtract", {"a": 5, "b": 8}, "-3"),
        ("multiply", {"a": 4, "b": 2.5}, "10.0"),
        ("divide", {"a": 7, "b": 2}, "3.5"),
        ("divide", {"a": 6, "b": 3}, "2.0"),
        ("divide", {"a": 1, "b": 0}, "Error: Division by zero"),
        ("divide", {"a": 1, "b": 0.0}, "Error: Division by zero"),
        ("add", {"a": "x", "b": "y"}, "xy"),
        ("add", {"a": "x", "b": 1}, "Error: Tool execution failed"),
        ("add", '{"a": 5, "b": 3}', "8"),
        (
            "add",
            "{bad",
            "Error: Invalid JSON arguments: "
            "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)",
        ),
        ("add", "", "Error: Invalid JSON arguments: Expecting value: line 1 column 1 (char 0)"),
        # The arguments are parsed before the name is looked up.
        ("nope", "{bad", "Error: Invalid JSON arguments: Expecting property name enclosed in double quotes: line 1 "),
        ("nope", "{}", "Error: Unknown function 'nope'. Available: ['add', 'subtract', 'multiply', 'divide'"),
        ("add", {"a": 5}, "Error: Invalid arguments for add: "),
        ("add", {"a": 5, "b": 3, "c": 1}, "Error: Invalid arguments for add: "),
        ("add", "[5, 3]", "Error: Invalid arguments for add: "),
        ("add", "5", "Error: Invalid arguments for add: "),
        ("add", "null", "Error: Invalid arguments for add: "),
    ]
    calls = [call(name, arguments) for name, arguments, _ in cases]
    async with scripted_trainer(tokenizer, say("calling", calls), say()) as trainer:
        result, _ = await run(pool, trainer)
    contents = [message.content for message in result.messages if message.role == "tool"]
    for (name, arguments, expected), content in zip(cases, contents, strict=True):
        assert isinstance(content, str)
        exact = not expected.startswith(("Error: Unknown", "Error: Invalid arg")) and not expected.endswith(" ")
        assert content == expected if exact else content.startswith(expected), (name, arguments)
