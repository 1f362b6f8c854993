"""How masks go wrong: what a trainer would train if it had not the pool's masks. Nothing here is for use.

Each function makes, of a rollout, what such a trainer holds. The ids stay: it is the mask that says which of them are
trained, and with which log-probabilities.
"""

from collections.abc import Sequence

from rolloutpool_common.protocol.result import RolloutResult, Sample
from rolloutpool_common.rendering import ChatTokenizer, rerender

__all__ = ["all_ones", "length_difference"]


def all_ones(sample: Sample) -> Sample:
    """Trains every token of the response, what tools and template wrote too."""
    return sample.model_copy(update={"response_mask": [1] * len(sample.response_ids)})


def length_difference(rollout: RolloutResult, sample: Sample, tokenizer: ChatTokenizer) -> Sample:
    """Counts what a tool added as the difference of two renders, as docs/masks.md describes.

    The trainer lays down ones for what was sampled and zeros for the difference, turn by turn, and its
    log-probabilities likewise. Where the template writes a call in another way than it was sampled, both are shifted
    against the ids from there on.

    Args:
        rollout: Its messages are what is rendered.
        sample: Its only one.
        tokenizer: Of rollout and trainer.
    """
    sampled = [segment for segment in sample.segments if segment.kind == "sampled"]
    turns = [i for i, message in enumerate(rollout.messages) if message.role == "assistant"][: len(sampled)]
    prompts = [
        len(rerender(tokenizer, [message.wire() for message in rollout.messages[:turn]], tools=None)) for turn in turns
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


def _fitted(values: Sequence[float], size: int, filler: float) -> list[float]:
    return [*values[:size], *[filler] * (size - len(values))]
