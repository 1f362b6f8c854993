"""The trainer's endpoint: exact sessions, strict masks, turns that are sampled once, and every refusal."""

import asyncio
import json
import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from rolloutpool_common.protocol.completions import CompletionsResponse
from rolloutpool_common.rendering import ChatTokenizer, load_tokenizer
from rolloutpool_common.testing import TINY_TOKENIZER
from rolloutpool_trainer.endpoint.app import CallbackApp, callback_app
from rolloutpool_trainer.endpoint.policy import GenerateParams, Generation
from rolloutpool_trainer.endpoint.server import serve_callback
from rolloutpool_trainer.testing import ScriptedPolicy, calculator_prompts

JSON = dict[str, Any]
QUESTION: JSON = {"role": "user", "content": "Calculate 15 + 23"}
RESULT_GLUE = "\n<|im_start|>tool\n<tool_response>\n{}\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
TOOLS: list[JSON] = [
    {"type": "function", "function": {"name": "add", "description": "Add", "parameters": {"type": "object"}}}
]
OPERATIONS: dict[str, Callable[[float, float], float]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "divide": lambda a, b: a / b,
}


@pytest.fixture(scope="module")
def tokenizer() -> ChatTokenizer:
    return load_tokenizer(str(TINY_TOKENIZER))


@asynccontextmanager
async def client_of(app: CallbackApp) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://trainer") as client:
        yield client


def body(messages: Sequence[JSON], mask: object = None, **more: Any) -> JSON:
    return {"messages": list(messages), "rollout_id": "r", "response_mask": mask, **more}


def turn_headers(turn: int, attempt: int = 1, uid: str = "u", digest: str | None = None) -> dict[str, str]:
    return {"Idempotency-Key": f"{uid}/{turn}", "X-Rollout-Attempt": str(attempt)} | (
        {} if digest is None else {"X-Request-Digest": digest}
    )


async def ask(client: httpx.AsyncClient, document: JSON, headers: dict[str, str] | None = None) -> httpx.Response:
    return await client.post("/v1/chat/completions", json=document, headers=headers)


def error_of(response: httpx.Response, status: int) -> JSON:
    assert response.status_code == status, response.text
    error: JSON = response.json()["error"]
    assert error["message"]
    return error


def message_of(response: httpx.Response) -> JSON:
    assert response.status_code == 200, response.text
    message: JSON = response.json()["choices"][0]["message"]
    return message


def tool_messages(message: JSON) -> list[JSON]:
    results = []
    for call in message["tool_calls"] or []:
        arguments = json.loads(call["function"]["arguments"])
        content = str(OPERATIONS[call["function"]["name"]](arguments["a"], arguments["b"]))
        results.append({"role": "tool", "content": content, "tool_call_id": call["id"]})
    return results


class Script:
    """A policy that says the given texts, one per turn; a text without close is a turn cut by length."""

    def __init__(self, tokenizer: ChatTokenizer, *texts: str) -> None:
        self.tokenizer, self.texts = tokenizer, texts
        self.prompts: list[list[int]] = []
        self.params: list[GenerateParams] = []

    async def __call__(self, prompt_ids: list[int], params: GenerateParams) -> Generation:
        self.prompts.append(prompt_ids)
        self.params.append(params)
        ids = self.tokenizer.encode(self.texts[params.turn - 1])
        cut = ids[-1] != self.tokenizer.close_id
        return Generation(
            token_ids=ids, logprobs=[-0.5 - i for i in range(len(ids))], finish_reason="length" if cut else "stop"
        )


CALL = '<tool_call>\n{"name":"add","arguments":{"a":15,"b":23}}\n</tool_call><|im_end|>'
ANSWER = "The result is 38.<|im_end|>"


async def second_turn(client: httpx.AsyncClient, headers: dict[str, str] | None = None) -> list[JSON]:
    """The messages of turn 2, behind a first turn that called the tool."""
    message = message_of(await ask(client, body([QUESTION]), headers))
    return [QUESTION, message, *tool_messages(message)]


# -- exact tokens


async def test_single_turn_is_all_ones(tokenizer: ChatTokenizer) -> None:
    app = callback_app(Script(tokenizer, ANSWER), tokenizer=tokenizer)
    async with client_of(app) as client:
        response = await ask(client, body([QUESTION], model="default", temperature=0.5))
    reply = CompletionsResponse.model_validate(response.json())
    assert reply.token_ids == tokenizer.encode(ANSWER)
    assert reply.prompt_token_ids == tokenizer.render_prompt([QUESTION])
    assert reply.choices[0].message.content == "The result is 38."
    assert reply.choices[0].message.tool_calls is None
    assert reply.choices[0].finish_reason == "stop"
    session = app.get_session("r")
    assert session.prompt_ids == reply.prompt_token_ids
    assert session.response_ids == reply.token_ids
    assert session.response_mask == [1] * len(reply.token_ids)
    assert session.response_logprobs == reply.logprobs
    assert (session.ones, session.zeros, session.turns) == (len(reply.token_ids), 0, 1)


async def test_zeros_are_the_tool_result_and_the_template_around_it(tokenizer: ChatTokenizer) -> None:
    app = callback_app(Script(tokenizer, CALL, ANSWER), tokenizer=tokenizer, tools=TOOLS)
    glue = tokenizer.encode(RESULT_GLUE.format(38))
    async with client_of(app) as client:
        messages = await second_turn(client)
        assert message_of(await ask(client, body(messages, [0] * len(glue))))["content"] == "The result is 38."
    session = app.get_session("r")
    call, answer = tokenizer.encode(CALL), tokenizer.encode(ANSWER)
    assert session.prompt_ids == tokenizer.render_prompt([QUESTION], tools=TOOLS)
    assert session.response_ids == call + glue + answer
    assert session.response_mask == [1] * len(call) + [0] * len(glue) + [1] * len(answer)
    assert session.zeros == len(glue)
    assert session.mismatches == 0
    assert len(session.samples) == 1


async def test_a_turn_cut_by_length_is_closed_by_a_zero(tokenizer: ChatTokenizer) -> None:
    app = callback_app(Script(tokenizer, "The result", "is 38.<|im_end|>"), tokenizer=tokenizer)
    again = {"role": "user", "content": "Go on"}
    glue = tokenizer.encode("<|im_end|>\n<|im_start|>user\nGo on<|im_end|>\n<|im_start|>assistant\n")
    async with client_of(app) as client:
        response = await ask(client, body([QUESTION]))
        assert response.json()["choices"][0]["finish_reason"] == "length"
        messages = [QUESTION, message_of(response), again]
        assert error_of(await ask(client, body(messages, [0] * (len(glue) - 1))), 422)["expected"] == len(glue)
        assert (await ask(client, body(messages, [0] * len(glue)))).status_code == 200
    first, second = tokenizer.encode("The result"), tokenizer.encode("is 38.<|im_end|>")
    assert app.get_session("r").response_ids == first + glue + second
    assert app.get_session("r").response_mask == [1] * len(first) + [0] * len(glue) + [1] * len(second)


@pytest.mark.parametrize("keeps_ids", [True, False])
async def test_scripted_rollouts_of_both_kinds_of_trainer(tokenizer: ChatTokenizer, keeps_ids: bool) -> None:
    """Each sampled token is trained once, and every reply repeats byte for byte after the rollout."""
    app = callback_app(ScriptedPolicy(tokenizer), tokenizer=tokenizer, keeps_ids=keeps_ids, tools=TOOLS)
    forked = 0
    async with client_of(app) as client:
        for index, question in enumerate(calculator_prompts(24)):
            messages: list[JSON] = [{"role": "user", "content": question}]
            asked: list[tuple[JSON, dict[str, str], httpx.Response]] = []
            sampled: list[list[int]] = []
            context: list[int] = []
            mask: list[int] | None = None
            while True:
                document = body(messages, mask, rollout_id=f"r{index}")
                headers = turn_headers(len(asked) + 1, uid=f"u{index}")
                response = await ask(client, document, headers)
                if response.status_code == 422:
                    # Only an endpoint that renders again can expect another length than what was appended.
                    expected = error_of(response, 422)["expected"]
                    assert not keeps_ids
                    mask = None if expected is None else [0] * expected
                    continue
                asked.append((document, headers, response))
                reply = response.json()
                if keeps_ids:
                    assert reply["prompt_token_ids"][: len(context)] == context
                sampled.append(reply["token_ids"])
                context = reply["prompt_token_ids"] + reply["token_ids"]
                message = message_of(response)
                results = tool_messages(message)
                messages = [*messages, message, *results]
                if not results:
                    break
                last = reply["token_ids"][-1]
                delta = tokenizer.render_delta(results, last_sampled_id=last, tools=TOOLS)
                mask = [0] * (len(delta.close_ids) + len(delta.glue_ids))
            session = app.get_session(f"r{index}")
            trained = [
                token
                for sample in session.samples
                for token, bit in zip(sample.response_ids, sample.response_mask, strict=True)
                if bit
            ]
            assert trained == [token for turn in sampled for token in turn]
            assert session.turns == len(asked)
            forked += len(session.samples) > 1
            for document, headers, response in asked:
                again = await ask(client, document, headers)
                assert again.content == response.content
    assert bool(forked) is not keeps_ids
    assert app.sampling_log.repeated() == {}


async def test_a_rendering_trainer_expects_the_length_difference(tokenizer: ChatTokenizer) -> None:
    policy = Script(tokenizer, CALL, ANSWER)
    app = callback_app(policy, tokenizer=tokenizer, keeps_ids=False)
    async with client_of(app) as client:
        messages = await second_turn(client)
        prompt = tokenizer.render_prompt(messages)
        exact = len(tokenizer.encode(RESULT_GLUE.format(38)))
        expected = len(prompt) - len(policy.prompts[0]) - len(tokenizer.encode(CALL))
        assert expected != exact
        assert error_of(await ask(client, body(messages, [0] * exact)), 422)["expected"] == expected
        assert (await ask(client, body(messages, [0] * expected))).status_code == 200
    assert policy.prompts[1] == prompt
    first, second = app.get_session("r").samples
    assert list(first.response_ids) == tokenizer.encode(CALL)
    assert list(second.prompt_ids) == prompt
    assert list(second.response_ids) == tokenizer.encode(ANSWER)


async def test_an_edited_history_is_a_new_sample(tokenizer: ChatTokenizer) -> None:
    policy = Script(tokenizer, CALL, ANSWER)
    app = callback_app(policy, tokenizer=tokenizer)
    async with client_of(app) as client:
        messages = await second_turn(client)
        edited = [{"role": "user", "content": "Calculate 15 + 24 with the tool, please, and say why"}, *messages[1:]]
        prompt = tokenizer.render_prompt(edited)
        difference = len(prompt) - len(policy.prompts[0]) - len(tokenizer.encode(CALL))
        assert (await ask(client, body(edited, [0] * difference))).status_code == 200
    first, second = app.get_session("r").samples
    assert list(first.response_ids) == tokenizer.encode(CALL)
    assert list(second.prompt_ids) == prompt
    assert app.get_session("r").response_mask == [1] * len(tokenizer.encode(ANSWER))


async def test_an_assistant_message_of_somebody_else_is_an_edit(tokenizer: ChatTokenizer) -> None:
    policy = Script(tokenizer, ANSWER, ANSWER)
    app = callback_app(policy, tokenizer=tokenizer, strict=False)
    async with client_of(app) as client:
        message = message_of(await ask(client, body([QUESTION])))
        foreign = [QUESTION, message, {"role": "assistant", "content": "Not mine."}, {"role": "user", "content": "?"}]
        assert (await ask(client, body(foreign))).status_code == 200
    assert policy.prompts[1] == tokenizer.render_prompt(foreign)


async def test_nulls_and_extra_nulls_are_no_edit(tokenizer: ChatTokenizer) -> None:
    app = callback_app(Script(tokenizer, CALL, ANSWER), tokenizer=tokenizer)
    async with client_of(app) as client:
        messages = await second_turn(client)
        messages[0] = {**messages[0], "tool_calls": None, "tool_call_id": None}
        messages[1] = {**messages[1], "content": ""}
        glue = len(tokenizer.encode(RESULT_GLUE.format(38)))
        assert (await ask(client, body(messages, [0] * glue))).status_code == 200
    assert len(app.get_session("r").samples) == 1


async def test_long_bodies_render_alike(tokenizer: ChatTokenizer) -> None:
    policy = Script(tokenizer, ANSWER, ANSWER)
    app = callback_app(policy, tokenizer=tokenizer, strict=False)
    long = {"role": "user", "content": "Calculate 1 + 1. " * 4000}
    async with client_of(app) as client:
        message = message_of(await ask(client, body([QUESTION])))
        message_of(await ask(client, body([QUESTION, message, long])))
    delta = tokenizer.render_delta([long], last_sampled_id=tokenizer.close_id)
    assert policy.prompts[1] == policy.prompts[0] + tokenizer.encode(ANSWER) + list(delta.glue_ids)


# -- what the policy is told


async def test_parameters_reach_the_policy(tokenizer: ChatTokenizer) -> None:
    policy = Script(tokenizer, ANSWER)
    app = callback_app(policy, tokenizer=tokenizer, tools=TOOLS, template_kwargs={"enable_thinking": True})
    async with client_of(app) as client:
        document = body([QUESTION], temperature=0.25, top_p=0.5, max_tokens=7, stop=["x"], logprobs=False, top_k=3)
        await ask(client, document)
    (params,) = policy.params
    assert (params.rollout_id, params.turn, params.tools) == ("r", 1, TOOLS)
    assert params.messages == [{**QUESTION, "tool_calls": None, "tool_call_id": None}]
    assert (params.temperature, params.top_p, params.max_tokens) == (0.25, 0.5, 7)
    assert (params.stop, params.logprobs, params.extra) == (["x"], False, {"top_k": 3})
    thinking = {"enable_thinking": True}
    assert policy.prompts == [tokenizer.render_prompt([QUESTION], tools=TOOLS, template_kwargs=thinking)]


async def test_the_policy_version_travels_in_a_header(tokenizer: ChatTokenizer) -> None:
    app = callback_app(Script(tokenizer, ANSWER), tokenizer=tokenizer, policy_version="step-1")
    async with client_of(app) as client:
        first = await ask(client, body([QUESTION]), turn_headers(1))
        app.policy_version = "step-2"
        replayed = await ask(client, body([QUESTION]), turn_headers(1))
        other = await ask(client, body([QUESTION], rollout_id="other"))
    assert [r.headers["X-Policy-Version"] for r in (first, replayed, other)] == ["step-1", "step-1", "step-2"]
    assert app.get_session("r").samples[0].segments[0].policy_version == "step-1"

    def versioned(prompt_ids: list[int], params: GenerateParams) -> Generation:
        return Generation(token_ids=[5], logprobs=[-1.0], policy_version="own")

    for policy, version in ((versioned, "own"), (Script(tokenizer, ANSWER), None)):
        async with client_of(callback_app(policy, tokenizer=tokenizer)) as client:
            assert (await ask(client, body([QUESTION]))).headers.get("X-Policy-Version") == version


async def test_tools_are_read_from_the_pool_once(tokenizer: ChatTokenizer) -> None:
    asked: list[str] = []

    async def tools(request: Request) -> JSONResponse:
        asked.append(request.url.path)
        return JSONResponse({"tools": TOOLS} if len(asked) > 1 else {"detail": "no worker yet"})

    with serve_callback(Starlette(routes=[Route("/tools", tools)]), [0]) as pool:
        policy = Script(tokenizer, ANSWER)
        app = callback_app(policy, tokenizer=tokenizer, tools=pool.url + "/")
        async with client_of(app) as client:
            error = error_of(await ask(client, body([QUESTION])), 503)
            assert error["type"] == "tools_unavailable"
            assert pool.url in error["message"]
            for _ in range(2):
                message_of(await ask(client, body([QUESTION]), turn_headers(1)))
                message_of(await ask(client, body([QUESTION], rollout_id="other")))
    assert asked == ["/tools", "/tools"]
    assert policy.prompts == [tokenizer.render_prompt([QUESTION], tools=TOOLS)] * 3


async def test_tools_are_read_at_start(tokenizer: ChatTokenizer) -> None:
    asked: list[str] = []

    async def tools(request: Request) -> JSONResponse:
        asked.append(request.url.path)
        return JSONResponse({"tools": TOOLS})

    with serve_callback(Starlette(routes=[Route("/tools", tools)]), [0]) as pool:
        app = callback_app(Script(tokenizer, ANSWER), tokenizer=tokenizer, tools=pool.url)
        with serve_callback(app, [0]):
            assert asked == ["/tools"]
    # A pool that is not up yet does not keep its trainer from starting.
    app = callback_app(Script(tokenizer, ANSWER), tokenizer=tokenizer, tools=pool.url)
    with serve_callback(app, [0]) as trainer:
        async with httpx.AsyncClient(base_url=trainer.url, trust_env=False) as client:
            assert (await client.get("/health")).json() == {"status": "healthy", "sessions": 0}


def test_a_tokenizer_may_be_named() -> None:
    app = callback_app(lambda ids, params: Generation(token_ids=[5], logprobs=[-1.0]), tokenizer=str(TINY_TOKENIZER))
    assert len(app.sessions) == 0


# -- masks


@pytest.mark.parametrize("change", [None, -1, 1, -999], ids=["missing", "shorter", "longer", "empty"])
async def test_strict_refuses_wrong_masks(tokenizer: ChatTokenizer, change: int | None) -> None:
    app = callback_app(Script(tokenizer, CALL, ANSWER), tokenizer=tokenizer)
    length = len(tokenizer.encode(RESULT_GLUE.format(38)))
    async with client_of(app) as client:
        messages = await second_turn(client)
        wrong = None if change is None else [0] * max(0, length + change)
        error = error_of(await ask(client, body(messages, wrong)), 422)
        assert error["type"] == "mask_mismatch"
        assert error["expected"] == length
        assert error["received"] == (None if wrong is None else len(wrong))
        assert app.get_session("r").turns == 1
        message_of(await ask(client, body(messages, [0] * length)))
    assert app.get_session("r").turns == 2


async def test_strict_refuses_a_mask_on_turn_one_and_odd_values(tokenizer: ChatTokenizer) -> None:
    app = callback_app(Script(tokenizer, CALL, ANSWER), tokenizer=tokenizer)
    length = len(tokenizer.encode(RESULT_GLUE.format(38)))
    async with client_of(app) as client:
        assert error_of(await ask(client, body([QUESTION], [0])), 422)["received"] == 1
        messages = await second_turn(client)
        for value in (2, True, 0.0, "0", None):
            error = error_of(await ask(client, body(messages, [0] * (length - 1) + [value])), 422)
            assert error["position"] == length - 1


async def test_lenient_counts_wrong_masks(tokenizer: ChatTokenizer) -> None:
    app = callback_app(Script(tokenizer, CALL, ANSWER), tokenizer=tokenizer, strict=False)
    async with client_of(app) as client:
        message = message_of(await ask(client, body([QUESTION], [0, 0])))
        messages = [QUESTION, message, *tool_messages(message)]
        message_of(await ask(client, body(messages, "no mask at all")))
    session = app.get_session("r")
    assert session.mismatches == 2
    glue = len(tokenizer.encode(RESULT_GLUE.format(38)))
    assert session.zeros == glue


# -- turns are sampled once


class Latch:
    """A policy that waits for permission, and counts how often it was asked."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.open = asyncio.Event()
        self.calls = 0

    async def __call__(self, prompt_ids: list[int], params: GenerateParams) -> Generation:
        self.calls += 1
        self.asked.set()
        await self.open.wait()
        return Generation(token_ids=[100 + self.calls], logprobs=[-1.0])


async def test_the_same_turn_joins_the_running_generation(tokenizer: ChatTokenizer) -> None:
    latch = Latch()
    app = callback_app(latch, tokenizer=tokenizer)
    async with client_of(app) as client, asyncio.TaskGroup() as group:
        first = group.create_task(ask(client, body([QUESTION]), turn_headers(1)))
        await latch.asked.wait()
        second = group.create_task(ask(client, body([QUESTION]), turn_headers(1, attempt=2)))
        other = await ask(client, body([QUESTION], temperature=0.1), turn_headers(1, attempt=2))
        stale = await ask(client, body([QUESTION]), turn_headers(1, attempt=1))
        latch.open.set()
    assert first.result().content == second.result().content
    assert error_of(other, 409)["type"] == "conflict"
    assert error_of(stale, 409)["expected"] == 2
    assert latch.calls == 1
    assert app.sampling_log.count("r", 1) == 1
    assert app.get_session("r", "u").attempt == 2


async def test_a_generation_outlives_its_caller(tokenizer: ChatTokenizer) -> None:
    latch = Latch()
    app = callback_app(latch, tokenizer=tokenizer)
    async with client_of(app) as client:
        dead = asyncio.create_task(ask(client, body([QUESTION]), turn_headers(1)))
        await latch.asked.wait()
        dead.cancel()
        with pytest.raises(asyncio.CancelledError):
            await dead
        heir = asyncio.create_task(ask(client, body([QUESTION]), turn_headers(1, attempt=2)))
        latch.open.set()
        assert (await heir).json()["token_ids"] == [101]
    assert latch.calls == 1


async def test_finished_turns_are_replayed_byte_for_byte(tokenizer: ChatTokenizer) -> None:
    app = callback_app(Script(tokenizer, CALL, ANSWER), tokenizer=tokenizer)
    glue = len(tokenizer.encode(RESULT_GLUE.format(38)))
    async with client_of(app) as client:
        first = await ask(client, body([QUESTION]), turn_headers(1))
        message = message_of(first)
        document = body([QUESTION, message, *tool_messages(message)], [0] * glue)
        second = await ask(client, document, turn_headers(2))
        assert (await ask(client, document, turn_headers(2))).content == second.content
        assert (await ask(client, body([QUESTION]), turn_headers(1, attempt=2))).content == first.content
        error = error_of(await ask(client, document, turn_headers(1, attempt=2)), 409)
        assert error["expected"] != error["received"]
        assert error_of(await ask(client, document, turn_headers(2, attempt=1)), 409)["expected"] == 2
    assert [record.turn for record in app.sampling_log] == [1, 2]


async def test_the_digest_header_decides(tokenizer: ChatTokenizer) -> None:
    app = callback_app(Script(tokenizer, ANSWER), tokenizer=tokenizer)
    async with client_of(app) as client:
        first = await ask(client, body([QUESTION]), turn_headers(1, digest="d"))
        same = await ask(client, body([QUESTION], seed=1), turn_headers(1, digest="d"))
        other = await ask(client, body([QUESTION]), turn_headers(1, digest="e"))
    assert same.content == first.content
    assert error_of(other, 409)["received"] == "e"


async def test_errors_are_not_kept(tokenizer: ChatTokenizer) -> None:
    fail = [True, True, False]

    def flaky(prompt_ids: list[int], params: GenerateParams) -> Generation:
        if fail.pop(0):
            raise RuntimeError("secret prompt text")
        return Generation(token_ids=[5], logprobs=[-1.0])

    app = callback_app(flaky, tokenizer=tokenizer)
    async with client_of(app) as client:
        for _ in range(2):
            response = await ask(client, body([QUESTION]), turn_headers(1))
            error = error_of(response, 500)
            assert error["type"] == "generate_failed"
            assert "RuntimeError" in error["message"]
            assert "secret" not in response.text
        assert (await ask(client, body([QUESTION]), turn_headers(1))).status_code == 200
    assert app.get_session("r").turns == 1
    assert len(app.sampling_log) == 1


@pytest.mark.parametrize(
    "generation",
    [
        Generation(token_ids=[], logprobs=[]),
        Generation(token_ids=[5], logprobs=[]),
        Generation(token_ids=[5], logprobs=[math.nan]),
        Generation(token_ids=[2**31], logprobs=[-1.0, -1.0]),
    ],
)
async def test_bad_generations_are_errors(tokenizer: ChatTokenizer, generation: Generation) -> None:
    app = callback_app(lambda ids, params: generation, tokenizer=tokenizer)
    async with client_of(app) as client:
        assert error_of(await ask(client, body([QUESTION])), 500)["type"] == "generate_failed"
    assert app.get_session("r").turns == 0


async def test_a_turn_without_its_predecessors_conflicts(tokenizer: ChatTokenizer) -> None:
    app = callback_app(Script(tokenizer, CALL, ANSWER), tokenizer=tokenizer)
    async with client_of(app) as client:
        messages = await second_turn(client, turn_headers(1))
        error = error_of(await ask(client, body(messages, [0]), turn_headers(3)), 409)
        assert (error["expected"], error["received"]) == (2, 3)
        error = error_of(await ask(client, body(messages, [0]), turn_headers(2, uid="lost")), 409)
        assert (error["expected"], error["received"]) == (1, 2)
    assert len(app.sessions) == 1


async def test_without_headers_one_turn_at_a_time(tokenizer: ChatTokenizer) -> None:
    latch = Latch()
    app = callback_app(latch, tokenizer=tokenizer)
    async with client_of(app) as client, asyncio.TaskGroup() as group:
        first = group.create_task(ask(client, body([QUESTION])))
        await latch.asked.wait()
        assert error_of(await ask(client, body([QUESTION])), 409)["type"] == "conflict"
        latch.open.set()
    assert first.result().status_code == 200
    assert latch.calls == 1


async def test_without_headers_the_first_request_again_is_a_new_rollout(tokenizer: ChatTokenizer) -> None:
    app = callback_app(Script(tokenizer, CALL, ANSWER), tokenizer=tokenizer)
    glue = len(tokenizer.encode(RESULT_GLUE.format(38)))
    async with client_of(app) as client:
        for _ in range(2):
            messages = await second_turn(client)
            message_of(await ask(client, body(messages, [0] * glue)))
    assert app.get_session("r").turns == 2
    assert app.sampling_log.repeated() == {("r", 1): 2, ("r", 2): 2}


async def test_one_name_in_two_batches(tokenizer: ChatTokenizer) -> None:
    app = callback_app(ScriptedPolicy(tokenizer), tokenizer=tokenizer)
    async with client_of(app) as client:
        for uid in ("u1", "u2"):
            assert (await ask(client, body([QUESTION]), turn_headers(1, uid=uid))).status_code == 200
    assert app.get_session("r").uid == "u2"
    assert app.get_session("r", "u1").turns == 1
    assert app.sampling_log.repeated() == {}


# -- the rest of the surface


async def test_bearer_key(tokenizer: ChatTokenizer) -> None:
    app = callback_app(Script(tokenizer, ANSWER), tokenizer=tokenizer, api_key="k")
    async with client_of(app) as client:
        for headers in ({}, {"Authorization": "Bearer x"}, {"Authorization": "k"}, {"Authorization": "bearer k"}):
            response = await ask(client, body([QUESTION]), headers)
            assert error_of(response, 401)["type"] == "unauthorized"
            assert response.headers["WWW-Authenticate"] == "Bearer"
        assert (await client.delete("/v1/sessions/r")).status_code == 401
        assert (await client.get("/health")).status_code == 200
        assert (await ask(client, body([QUESTION]), {"Authorization": "Bearer k"})).status_code == 200


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'"x"', b"\xff", b'{"a": NaN}'])
async def test_bodies_that_are_no_json_object(tokenizer: ChatTokenizer, content: bytes) -> None:
    async with client_of(callback_app(Script(tokenizer, ANSWER), tokenizer=tokenizer)) as client:
        response = await client.post("/v1/chat/completions", content=content)
    assert error_of(response, 400)["type"] == "bad_json"


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"messages": None}, "messages"),
        ({"messages": []}, None),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content"),
        ({"rollout_id": None}, "rollout_id"),
        ({"rollout_id": ""}, None),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"stop": "x"}, "stop"),
    ],
)
async def test_bodies_with_faults(tokenizer: ChatTokenizer, change: JSON, path: str | None) -> None:
    async with client_of(callback_app(Script(tokenizer, ANSWER), tokenizer=tokenizer)) as client:
        error = error_of(await ask(client, {**body([QUESTION]), **change}), 422)
    assert error["type"] == "bad_request"
    assert path is None or any(fault["path"].startswith(path) for fault in error["faults"])


@pytest.mark.parametrize(
    "headers",
    [
        {"Idempotency-Key": "nothing"},
        {"Idempotency-Key": "/1"},
        {"Idempotency-Key": "u/0"},
        {"Idempotency-Key": "u/x"},
        {"Idempotency-Key": "u/1", "X-Rollout-Attempt": "0"},
        {"X-Rollout-Attempt": "first"},
    ],
)
async def test_headers_that_cannot_be_read(tokenizer: ChatTokenizer, headers: dict[str, str]) -> None:
    async with client_of(callback_app(Script(tokenizer, ANSWER), tokenizer=tokenizer)) as client:
        assert error_of(await ask(client, body([QUESTION]), headers), 400)["type"] == "bad_header"


async def test_what_the_template_refuses(tokenizer: ChatTokenizer) -> None:
    app = callback_app(Script(tokenizer, ANSWER), tokenizer=tokenizer)
    async with client_of(app) as client:
        parts = {"role": "user", "content": [{"type": "text", "text": "x"}]}
        assert error_of(await ask(client, body([parts])), 400)["type"] == "template_refused"


async def test_sessions_can_be_dropped(tokenizer: ChatTokenizer) -> None:
    app = callback_app(Script(tokenizer, ANSWER), tokenizer=tokenizer)
    async with client_of(app) as client:
        await ask(client, body([QUESTION], rollout_id="job/step 1"))
        assert (await client.get("/health")).json() == {"status": "healthy", "sessions": 1}
        assert (await client.delete("/v1/sessions/job/step 1")).status_code == 204
        assert error_of(await client.delete("/v1/sessions/job/step 1"), 404)["type"] == "not_found"
    with pytest.raises(KeyError, match="job/step 1"):
        app.get_session("job/step 1")


async def test_sessions_are_bounded(tokenizer: ChatTokenizer) -> None:
    app = callback_app(ScriptedPolicy(tokenizer), tokenizer=tokenizer, max_sessions=5)
    async with client_of(app) as client:
        for index in range(12):
            await ask(client, body([QUESTION], rollout_id=f"r{index}"))
    assert len(app.sessions) == 5
    assert app.get_session("r11").turns == 1
