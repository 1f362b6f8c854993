"""A result as the `response` that an agent of NeMo Gym answers with, and that NeMo-RL trains on.

Read from nemo-gym 0.4.0, nemo_gym/openai_utils.py (`NeMoGymResponse`, `TokenIDLogProbMixin`), and from NeMo-RL at
7ea279abf, nemo_rl/environments/nemo_gym.py (`_postprocess_nemo_gym_to_nemo_rl_result`).

The conversation is a list of the Responses API's items. The last item of each turn of the policy carries that turn:

- `prompt_token_ids`: all that the policy had read, so it begins with the turn before, its prompt and what it sampled.
  NeMo-RL asserts that, and takes what was added since as context.
- `generation_token_ids` and `generation_log_probs`: what it sampled.

Each turn repeats its whole prompt, so a rollout of many turns is large there. It has no place for a second sample of a
rollout, which is refused; nor for policy versions, for what follows the last turn, and for a reasoning beside the text.
"""

from typing import Any

from rolloutpool_common.protocol.response_items import answer_items, context_item
from rolloutpool_common.protocol.result import RolloutResult
from rolloutpool_rl.errors import ExportRefused
from rolloutpool_rl.training_rows import TrainingRow, training_rows


def nemo_gym_response(result: RolloutResult, params: dict[str, Any]) -> dict[str, Any]:
    """Makes the JSON of a `NeMoGymResponse`.

    Args:
        result: Of a rollout with one sample.
        params: The row's `responses_create_params`; model and tools are copied.

    Raises:
        ExportRefused: See `training_rows.trainable`; also a forked rollout, because NeMo-RL asserts that all turns are
            one sequence; and one whose transcript has not one message for each turn.
    """
    rows = training_rows(result)
    if len(rows) != 1:
        raise ExportRefused(
            f"Rollout {result.rollout_id} has {len(rows)} samples to train, and NeMo-RL takes exactly one. Run with "
            "`on_drift: fail` so that no rollout forks."
        )
    (row,) = rows
    items, written = _items(row)
    if written != row.needed_calls or max((turn for turn, *_ in row.turn_ranges), default=0) > written:
        raise ExportRefused(
            f"Rollout {result.rollout_id} has {row.told_calls} turns, but {written} messages of the policy: an "
            "agent edited its history, and it can't be told which message a turn became."
        )
    return {
        "id": f"resp_{result.uid}",
        "object": "response",
        "created_at": 0.0,
        "status": "incomplete" if row.truncated else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if row.truncated else None,
        "model": params.get("model") or "policy",
        "output": items,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": params.get("tools") or [],
    }


def _items(row: TrainingRow) -> tuple[list[dict[str, Any]], int]:
    """Makes the items of a row's conversation; returns also how many messages of the policy it has."""
    turns = {turn: (start, end) for turn, start, end in row.turn_ranges}
    items: list[dict[str, Any]] = []
    written = 0
    for number, message in enumerate(row.messages[row.first_sampled :], row.first_sampled):
        if message["role"] != "assistant":
            items.append(context_item(message))
            continue
        written += 1
        own = answer_items(message, number)
        if written in turns:
            start, end = turns[written]
            own[-1] |= {
                "prompt_token_ids": row.ids[:start],
                "generation_token_ids": row.ids[start:end],
                "generation_log_probs": row.whole_logprobs[start:end],
            }
        items += own
    return items, written
