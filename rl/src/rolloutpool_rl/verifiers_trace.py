"""A result as a `Trace` of verifiers v1, for prime's viewers and trainers.

Read from verifiers 0.4.0, verifiers/v1/trace.py and verifiers/v1/graph.py.

A trace is a graph of messages: each node holds the ids that its message adds, and a path from a root to a leaf, a
branch, is one training sample. Each of our samples is one path:

1. The messages of its prompt come first. All prompt ids are on the last of them, because a prompt is rendered as a
   whole.
2. Each turn of the policy is a node with what it sampled, mask and log-probabilities.
3. What follows a turn are the nodes of its tool results or user messages. Their ids, the template's text around them
   included, are on the last of them.

It has no place for policy versions, and for a sample whose messages an agent edited, which is refused.
"""

from itertools import groupby
from typing import Any

from rolloutpool_common.protocol.result import RolloutResult
from rolloutpool_rl.errors import ExportRefused
from rolloutpool_rl.training_rows import TrainingRow, training_rows


def verifiers_trace(result: RolloutResult, reward: float | None = None, *, task: dict[str, Any]) -> dict[str, Any]:
    """Makes the JSON of a trace; `Trace.model_validate` of verifiers reads it.

    Args:
        result: Of a rollout.
        reward: Of the episode; None where it was not scored.
        task: The row that was solved; `prompt` is filled in where it is missing.

    Raises:
        ExportRefused: See `training_rows.trainable`; also if the transcript has not one message for each turn.
    """
    nodes: list[dict[str, Any]] = []
    for row in training_rows(result):
        _append_path(nodes, row)
    failure = result.failure
    return {
        "id": result.uid,
        "task": {"type": "Task", "data": {"idx": result.index, "prompt": None, **task}},
        "agent": {"config": {}},
        "nodes": nodes,
        "rewards": {"reward": None if reward is None else {"score": reward}},
        "metrics": {"turns": float(result.num_llm_calls), "tool_calls": float(result.num_tool_calls)},
        "info": {"rollout_uid": result.uid, "alignment": str(result.alignment)},
        "is_completed": True,
        "ok": failure is None,
        "stop_condition": str(result.finish_reason),
        "errors": [] if failure is None else [{"type": str(failure.category), "message": failure.message}],
    }


def _append_path(nodes: list[dict[str, Any]], row: TrainingRow) -> None:
    messages, first = row.messages, row.first_sampled
    answers = [place for place, message in enumerate(messages) if message["role"] == "assistant" and place >= first]
    segments = [segment for segment in row.sample.segments if segment.kind == "sampled"]
    if len(answers) != row.needed_calls or any(segment.turn > len(answers) for segment in segments):
        raise ExportRefused(
            f"Rollout {row.result.rollout_id} has {row.told_calls} turns, but {len(answers)} messages of the "
            "policy: an agent edited its history, and it can't be told which message a turn became."
        )
    parent: int | None = None

    def add(message: dict[str, Any], ids: list[int], **more: Any) -> None:
        nonlocal parent
        nodes.append({"parent": parent, "message": _message(message), "token_ids": ids, **more})
        parent = len(nodes) - 1

    position, written = 0, 0
    for turn, of_turn in groupby(segments, key=lambda segment: segment.turn):
        # Over an update of the weights a turn has several.
        parts = list(of_turn)
        start, end = (len(row.sample.prompt_ids) + at for at in (parts[0].start, parts[-1].start + parts[-1].n))
        place = answers[turn - 1]
        before, context = messages[written:place], row.ids[position:start]
        for message in before:
            add(
                message,
                context if message is before[-1] else [],
                mask=[False] * (len(context) * (message is before[-1])),
            )
        # Without a message of its own the context goes in front of the turn's own ids, as a template's header does.
        lead = [] if before else context
        ids = row.ids[start:end]
        flags = [bool(flag) for flag in row.whole_mask[start:end]]
        logprobs = row.whole_logprobs[start:end]
        add(
            messages[place],
            [*lead, *ids],
            sampled=True,
            mask=[False] * len(lead) + flags,
            logprobs=[value for value, flag in zip(logprobs, flags, strict=True) if flag],
        )
        position, written = end, place + 1


def _message(message: dict[str, Any]) -> dict[str, Any]:
    """Writes a message as verifiers does: calls have their name and arguments at the top."""
    calls = [
        {"id": call["id"], "name": call["function"]["name"], "arguments": call["function"]["arguments"]}
        for call in message.get("tool_calls") or []
    ]
    plain = {key: value for key, value in message.items() if key != "tool_calls"}
    return plain | ({"tool_calls": calls} if calls else {})
