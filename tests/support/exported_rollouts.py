"""Results to export: with a tool result in the middle, forked, without trained tokens, failed."""

from typing import Any

from tests.support.api_documents import result

from rolloutpool_common.protocol.result import RolloutResult

CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": "Example?"},
    {"role": "assistant", "content": "An example that nobody sampled."},
    {"role": "user", "content": "1 + 1?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL, CALL]},
    {"role": "tool", "content": "2", "tool_call_id": "c1"},
    {"role": "tool", "content": "2", "tool_call_id": "c1"},
    {"role": "assistant", "content": "2"},
]


def sample(prompt: list[int], sampled: int, glue: int = 0, more: int = 0, version: str | None = None) -> dict[str, Any]:
    n = sampled + glue + more
    mask = [1] * sampled + [0] * glue + [1] * more
    kinds = [("sampled", sampled, 1), ("glue", glue, 1), ("sampled", more, 2)]
    segments, start = [], 0
    for kind, size, turn in kinds:
        if size:
            found = version if kind == "sampled" else None
            segments.append({"kind": kind, "start": start, "n": size, "turn": turn, "policy_version": found})
            start += size
    return {
        "prompt_ids": prompt,
        "response_ids": [100 + i for i in range(n)],
        "response_mask": mask,
        "response_logprobs": [-0.5 * m for m in mask],
        "segments": segments,
    }


def rollout(index: int, *samples: dict[str, Any], **changes: Any) -> RolloutResult:
    document = result(index, samples=list(samples), messages=MESSAGES, num_llm_calls=2)
    return RolloutResult.model_validate(document | changes)


ONE = sample([1, 2, 3], 2, 3, 1, version="7")
PLAIN = rollout(4, ONE, group="g", metadata={"task": "sums"}, spans={"llm_ms": 1500, "tools_ms": 250})
FORKED = rollout(5, sample([1, 2], 2), sample([1, 2, 9, 9, 9], 4), alignment="forked")
UPDATED = ONE | {
    "segments": [
        {"kind": "sampled", "start": 0, "n": 1, "turn": 1, "policy_version": "7"},
        {"kind": "sampled", "start": 1, "n": 1, "turn": 1, "policy_version": "8"},
        *ONE["segments"][1:],
    ]
}
"""The same ids; an engine's weights were updated in the middle of the first turn."""
UNTRAINED = ONE | {"response_mask": [0] * 6}


def failure(kind: str) -> dict[str, Any]:
    return {
        "status": "failed",
        "finish_reason": "error",
        "failure": {
            "kind": kind,
            "boundary": "trainer",
            "category": "network_error",
            "message": "The trainer is gone.",
            "retryable": False,
        },
    }
