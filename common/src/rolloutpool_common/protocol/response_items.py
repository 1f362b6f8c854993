"""Messages as items of OpenAI's Responses API, which NeMo Gym's servers and trainers read.

One message of the policy may be several items: what it said, and one for each of its calls. All other messages are one
item each. What a message has beside role, content and calls (its reasoning, for instance) has no place in them.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rolloutpool_common.protocol.messages import text_of


def output_items(transcript: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Writes what followed the prompt."""
    items: list[dict[str, Any]] = []
    for number, message in enumerate(transcript):
        if message["role"] == "assistant":
            items += answer_items(message, number)
        elif items:
            items.append(context_item(message))
    return items


def context_item(message: Mapping[str, Any]) -> dict[str, Any]:
    """Writes a message that the policy did not write."""
    if message["role"] == "tool":
        return {"type": "function_call_output", "call_id": message["tool_call_id"], "output": text_of(message)}
    return {"type": "message", "role": message["role"], "content": text_of(message)}


def answer_items(message: Mapping[str, Any], number: int) -> list[dict[str, Any]]:
    """Writes a message of the policy."""
    items: list[dict[str, Any]] = []
    calls = message.get("tool_calls") or ()
    text = text_of(message)
    if text or not calls:
        content = [{"type": "output_text", "text": text, "annotations": []}]
        said = {"type": "message", "id": f"msg_{number}", "role": "assistant", "status": "completed"}
        items.append({**said, "content": content})
    for call in calls:
        arguments = call["function"]["arguments"]
        items.append(
            {
                "type": "function_call",
                "id": f"fc_{call['id']}",
                "call_id": call["id"],
                "name": call["function"]["name"],
                "arguments": arguments if isinstance(arguments, str) else json.dumps(arguments),
                "status": "completed",
            }
        )
    return items
