"""How masks go wrong: what a trainer would train if it had not the pool's masks. Nothing here is for use.

Each function makes, of a rollout, what such a trainer holds. The ids stay: it is the mask that says which of them are
trained, and with which log-probabilities.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any

from rolloutpool_common.protocol.result import RolloutResult, Sample
from rolloutpool_common.rendering import ChatTokenizer, rerender

__all__ = ["all_ones", "length_difference", "shortest"]

_Message = dict[str, Any]


def all_ones(sample: Sample) -> Sample:
    """Trains every token of the response, what tools and template wrote too."""
    return sample.model_copy(update={"response_mask": [1] * len(sample.response_ids)})


def length_difference(
    rollout: RolloutResult,
    sample: Sample,
    tokenizer: ChatTokenizer,
    rewrite: Callable[[_Message], _Message] = lambda message: message,
) -> Sample:
    """Counts what a tool added as the difference of two renders, as docs/masks.md describes.

    The trainer lays down ones for what was sampled and zeros for the difference, turn by turn, and its
    log-probabilities likewise. Where its template writes a call in another way than it was sampled, both are shifted
    against the ids from there on.

    Args:
        rollout: Its messages are what is rendered.
        sample: Its only one.
        tokenizer: Of rollout and trainer.
        rewrite: What the trainer's template makes of a message before it renders it.
    """
    sampled = [segment for segment in sample.segments if segment.kind == "sampled"]
    turns = [i for i, message in enumerate(rollout.messages) if message.role == "assistant"][: len(sampled)]
    prompts = [
        len(rerender(tokenizer, [rewrite(message.wire()) for message in rollout.messages[:turn]], tools=None))
        for turn in turns
    ]
    mask: list[int] = []
    logprobs: list[float] = []
    for index, segment in enumerate(sampled):
        if index:
            # The render then, what was sampled after it, and the render now. Below 0, it sends no mask.
            zeros = max(prompts[index] - prompts[index - 1] - sampled[index - 1].n, 0)
            mask += [0] * zeros
            logprobs += [0.0] * zeros
        mask += [1] * segment.n
        logprobs += sample.response_logprobs[segment.start : segment.start + segment.n]
    size = len(sample.response_ids)
    return sample.model_copy(
        update={"response_mask": _fitted(mask, size, 0), "response_logprobs": _fitted(logprobs, size, 0.0)}
    )


def shortest(message: _Message) -> _Message:
    """Writes the arguments of a message's calls as JSON without spaces, as some templates do.

    Arguments that are no JSON stay.
    """
    calls = []
    for call in message.get("tool_calls") or []:
        function = call["function"]
        try:
            text = json.dumps(json.loads(function["arguments"]), separators=(",", ":"))
        except (TypeError, ValueError):
            text = function["arguments"]
        calls.append({**call, "function": {**function, "arguments": text}})
    return {**message, "tool_calls": calls} if calls else message


def _fitted(values: Sequence[float], size: int, filler: float) -> list[float]:
    return [*values[:size], *[filler] * (size - len(values))]
