"""A client of the trainer's endpoint without a socket, and a policy of fixed texts.

`FixedTexts` is not the scripted trainer: it is the policy alone, so that a test can look at the prompts and parameters
that the endpoint gave it.
"""

import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx

from rolloutpool_common.rendering import ChatTokenizer
from rolloutpool_trainer.endpoint.app import CallbackApp
from rolloutpool_trainer.endpoint.policy import GenerateParams, Generation

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


class FixedTexts:
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
    """The messages of turn 2, after a first turn that called the tool."""
    message = message_of(await ask(client, body([QUESTION]), headers))
    return [QUESTION, message, *tool_messages(message)]
