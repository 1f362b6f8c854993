"""Calls a door with the official SDKs, and says what they have read: `sdk_reader.py` where the SDKs are installed.

Standard input holds a list of cases, each `{"client", "stream", "url", "key", "prompt"}`, or also `after` or `counts`.
They are called side by side.
Standard output gets a list of what was read. Both SDKs validate each answer and each event against their own types,
which they do not by default.
"""

import json
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anthropic
import openai

SHELL = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
OPTIONS: dict[str, Any] = {"max_retries": 0, "timeout": 60, "_strict_response_validation": True}


def chat(case: Mapping[str, Any]) -> dict[str, Any]:
    """Chat completions, and what the SDK has put together of a stream."""
    client = openai.OpenAI(base_url=f"{case['url']}/v1", api_key=case["key"], **OPTIONS)
    asked: dict[str, Any] = {
        "model": "policy",
        "messages": [{"role": "user", "content": case["prompt"]}],
        "tools": [{"type": "function", "function": {"name": "shell", "parameters": SHELL}}],
    }
    if case["stream"]:
        kinds = []
        try:
            with client.chat.completions.stream(**asked, stream_options={"include_usage": True}) as stream:
                kinds += [event.type for event in stream]
                found = stream.get_final_completion()
        except openai.LengthFinishReasonError as cut:
            found = cut.completion
    else:
        kinds, found = [], client.chat.completions.create(**asked)
    message = found.choices[0].message
    calls = [(call.id, call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls or ()]
    return {
        "text": message.content,
        # Of no type of theirs: engines say it so, and their clients read it so.
        "reasoning": getattr(message, "reasoning_content", None),
        "calls": calls,
        "ended": found.choices[0].finish_reason,
        "usage": [found.usage.prompt_tokens, found.usage.completion_tokens, found.usage.total_tokens],
        "kinds": kinds,
        "id": found.id,
    }


def responses(case: Mapping[str, Any]) -> dict[str, Any]:
    """Responses, likewise."""
    client = openai.OpenAI(base_url=f"{case['url']}/v1", api_key=case["key"], **OPTIONS)
    asked: dict[str, Any] = {
        "model": "policy",
        "input": case["prompt"],
        "tools": [{"type": "function", "name": "shell", "parameters": SHELL, "strict": False}],
        "store": False,
        **({"previous_response_id": case["after"]} if "after" in case else {}),
    }
    if case["stream"]:
        with client.responses.stream(**asked) as stream:
            events = list(stream)
            kinds = [event.type for event in events]
            # `get_final_response` wants `response.completed`, which a reply that was cut does not have.
            found = events[-1].response
            if found.error is not None:
                return {"error": found.error.code, "status": None, "message": found.error.message}
    else:
        kinds, found = [], client.responses.create(**asked)
    items: dict[str, list[Any]] = {"reasoning": [], "function_call": [], "message": []}
    for item in found.output:
        items[item.type].append(item)
    return {
        "text": found.output_text or None,
        "reasoning": "".join(part.text for item in items["reasoning"] for part in item.summary) or None,
        "calls": [(call.call_id, call.name, json.loads(call.arguments)) for call in items["function_call"]],
        "ended": found.incomplete_details.reason if found.incomplete_details else found.status,
        "usage": [found.usage.input_tokens, found.usage.output_tokens, found.usage.total_tokens],
        "kinds": kinds,
        "id": found.id,
    }


def messages(case: Mapping[str, Any]) -> dict[str, Any]:
    """Messages, likewise."""
    client = anthropic.Anthropic(base_url=case["url"], api_key=case["key"], **OPTIONS)
    asked: dict[str, Any] = {
        "model": "policy",
        "max_tokens": 1000,
        "messages": [{"role": "user", "content": case["prompt"]}],
        "tools": [{"name": "shell", "input_schema": SHELL}],
    }
    if case.get("counts"):
        asked.pop("max_tokens")
        return {"counted": client.messages.count_tokens(**asked).input_tokens}
    if case["stream"]:
        with client.messages.stream(**asked) as stream:
            kinds = [event.type for event in stream]
            found = stream.get_final_message()
    else:
        kinds, found = [], client.messages.create(**asked)
    blocks: dict[str, list[Any]] = {"thinking": [], "text": [], "tool_use": []}
    for block in found.content:
        blocks[block.type].append(block)
    used = found.usage.input_tokens, found.usage.output_tokens
    return {
        "text": "".join(block.text for block in blocks["text"]) or None,
        "reasoning": "".join(block.thinking for block in blocks["thinking"]) or None,
        "calls": [(block.id, block.name, block.input) for block in blocks["tool_use"]],
        "ended": found.stop_reason,
        "usage": [*used, sum(used)],
        "kinds": kinds,
        "id": found.id,
    }


CLIENTS: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "chat": chat,
    "responses": responses,
    "messages": messages,
}


def read(case: Mapping[str, Any]) -> dict[str, Any]:
    """Calls once; an error is read, too."""
    try:
        return CLIENTS[case["client"]](case)
    except (openai.APIError, anthropic.APIError) as error:
        return {
            "error": type(error).__name__,
            "status": getattr(error, "status_code", None),
            "message": f"{error} {error.__cause__ or ''}",
            "code": getattr(error, "code", None),
            "type": getattr(error, "type", None),
        }


cases = json.load(sys.stdin)
with ThreadPoolExecutor(len(cases)) as pool:
    json.dump(list(pool.map(read, cases)), sys.stdout)
