"""What a trainer would train if it had not the pool's masks: mostly how masks go wrong. Nothing here is for use.

Each function makes, of a rollout, what such a trainer holds. The ids stay: it is the mask that says which of them are
trained, and with which log-probabilities.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any

from rolloutpool_common.protocol.result import RolloutResult, Sample
from rolloutpool_common.rendering import ChatTokenizer, rerender

_Message = dict[str, Any]


def all_ones(sample: Sample) -> Sample:
    """Trains every token of the response, what tools and template wrote too."""
    return sample.model_copy(update={"response_mask": [1] * len(sample.response_ids)})


def shifted(sample: Sample) -> Sample:
    """Lays the mask one token too early from the second turn on, as if the first delta were a token shorter."""
    first = next(segment for segment in sample.segments if segment.kind == "sampled")
    behind = first.start + first.n
    mask = [*sample.response_mask[:behind], *sample.response_mask[behind + 1 :]]
    return sample.model_copy(update={"response_mask": _fitted(mask, len(sample.response_ids), 0)})


def concatenated(rollout: RolloutResult, sample: Sample, tokenizer: ChatTokenizer) -> Sample:
    """Lays a rollout out as TRL does: sampled ids stay, what tools added is rendered behind a stand-in for the turn.

    What is rendered is a question and an empty call of the same tool, without and with the tools' messages; what the
    second has behind the end of the call is joined. Ids and mask are the pool's where the template prints tools alike
    behind any turn.
    """
    ids: list[int] = []
    mask: list[int] = []
    logprobs: list[float] = []
    sampled = [segment for segment in sample.segments if segment.kind == "sampled"]
    turns = [i for i, message in enumerate(rollout.messages) if message.role == "assistant"][: len(sampled)]
    for index, segment in enumerate(sampled):
        span = slice(segment.start, segment.start + segment.n)
        ids += sample.response_ids[span]
        mask += [1] * segment.n
        logprobs += sample.response_logprobs[span]
        if index + 1 < len(sampled):
            said = [message.wire() for message in rollout.messages[turns[index] + 1 : turns[index + 1]]]
            added = _behind_stand_in(said, tokenizer)
            ids += added
            mask += [0] * len(added)
            logprobs += [0.0] * len(added)
    return sample.model_copy(update={"response_ids": ids, "response_mask": mask, "response_logprobs": logprobs})


def _behind_stand_in(said: list[_Message], tokenizer: ChatTokenizer) -> list[int]:
    """What a render prints for these messages of tools behind the end of an empty call."""
    function = {"name": said[0].get("name") or "stand-in", "arguments": "{}"}
    call = {"id": said[0].get("tool_call_id"), "type": "function", "function": function}
    stand_in: list[_Message] = [
        {"role": "user", "content": "dummy"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
    ]
    asked = rerender(tokenizer, stand_in[:1], tools=None)
    end = rerender(tokenizer, stand_in, tools=None).index(tokenizer.close_id or 0, len(asked))
    return rerender(tokenizer, [*stand_in, *said], tools=None)[end + 1 :]


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
