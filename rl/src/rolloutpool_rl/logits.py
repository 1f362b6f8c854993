"""Where a response's logits lie, and the log-probabilities of its tokens: the logit at position t predicts token t + 1.

A response has the tokens [start, end), so its logits are those at [start - 1, end - 1). For example, with a prompt of
3 and a response of 2 tokens, tokens 3 and 4 are predicted by the logits at 2 and 3. Without a prompt token, nothing
predicts the first one. The response is everything from the first sampled token on, tool tokens included: GAE reads
their values, and their losses are masked.
"""

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from rolloutpool_rl.arrays import Array, as_floats, namespace
from rolloutpool_rl.errors import ShapeMismatch


def token_logprobs(logits: Array, ids: Array, *, temperature: float = 1.0) -> Array:
    """Computes the log-probability of each token, log softmax(logits / temperature) at its id.

    Half-precision logits are computed in float32. **The float32 trap**: `F.cross_entropy(logits.transpose(1, 2), ids,
    reduction="none")` on 3-D logits sums the vocabulary in another order than a sampler's `log_softmax(-1)`, and less
    exactly: with 152,000 logits it is off by 1.4e-5 where the other is off by 1.8e-6, and this function by 1.0e-6
    (torch 2.15 on CPU, against float64). So importance ratios of a policy that has not moved are not 1. Compare with
    `rollout_log_probs` before the first step of a run: both must agree to about 1e-5.

    Args:
        logits: [..., V]; slice them first (`response_slice`), so that position t holds the logits that predict
            `ids[t]`.
        ids: [...], integers from 0 to V - 1.
        temperature: What the policy was sampled with; log-probabilities of another temperature belong to another
            policy.

    Returns:
        [...], natural logarithm. Where a forbidden token (logit -inf) was sampled, -inf.

    Raises:
        ShapeMismatch: Ids are not of the shape of the logits without V, or an id is not below V.
        ValueError: The temperature is not above 0.
    """
    if temperature <= 0:
        raise ValueError(f"The temperature is {temperature}; greedy sampling has no log-probabilities to train on.")
    (logits,) = as_floats(logits=logits)
    xp = namespace(logits)
    ids = np.asarray(ids) if xp is np else xp.as_tensor(ids, device=logits.device)
    if tuple(ids.shape) != tuple(logits.shape[:-1]):
        raise ShapeMismatch(f"Ids {list(ids.shape)} do not fit logits {list(logits.shape)}.")
    if 0 not in ids.shape and not 0 <= int(ids.min()) <= int(ids.max()) < logits.shape[-1]:
        raise ShapeMismatch(f"An id is not from 0 to {logits.shape[-1] - 1}, so the logits have no column for it.")
    if xp is not np and logits.dtype in (xp.float16, xp.bfloat16):
        logits = logits.float()
    scaled = logits if temperature == 1.0 else logits / temperature
    # The largest is subtracted before the exponential, so that no sum overflows; and from the chosen logit too, before
    # the logarithm: added to that instead, a large one would cost its digits.
    shifted = scaled - xp.amax(scaled, axis=-1, keepdims=True)
    place = ids[..., None]
    chosen = xp.take_along_axis(shifted, place, -1) if xp is np else xp.gather(shifted, -1, place.long())
    return chosen[..., 0] - xp.log(xp.exp(shifted).sum(-1))


def get_values(
    outputs: Array,
    total_lengths: Sequence[int],
    response_lengths: Sequence[int],
    *,
    padded_length: int | None = None,
) -> list[Array]:
    """Takes the values of each response out of a critic's outputs: V(t) is at the position before token t.

    Tool tokens are part of the response, so they have values too; see `advantages.gae` for what to do with them.

    Args:
        outputs: [T] or [T, 1], of all sequences, one after the other.
        total_lengths: [B], tokens of prompt and response.
        response_lengths: [B].
        padded_length: As for `response_slices`.

    Returns:
        B arrays [R].

    Raises:
        ShapeMismatch: Lengths are impossible, or do not fit the outputs.
    """
    (outputs,) = as_floats(outputs=outputs)
    if len(outputs.shape) == 2 and outputs.shape[1] == 1:
        outputs = outputs[:, 0]
    expected = sum(total_lengths) if padded_length is None else padded_length * len(total_lengths)
    if len(outputs.shape) != 1 or outputs.shape[0] != expected:
        raise ShapeMismatch(f"Outputs have the shape {list(outputs.shape)}; [{expected}] or [{expected}, 1] fits.")
    return [outputs[part] for part in response_slices(total_lengths, response_lengths, padded_length=padded_length)]


def response_slice(total: int, response: int, *, offset: int = 0) -> slice:
    """Finds the logits of one response.

    Args:
        total: Tokens of prompt and response.
        response: Tokens of the response, at the end of the sequence.
        offset: Where the sequence's first token is.

    Raises:
        ShapeMismatch: Unless 0 ≤ response < total. Without a prompt token the slice would start at -1, which is the
            other end of the array.
    """
    if not 0 <= response < total or offset < 0:
        raise ShapeMismatch(f"A response of {response} tokens cannot end a sequence of {total} tokens at {offset}.")
    end = offset + total
    return slice(end - response - 1, end - 1)


def response_slices(
    total_lengths: Sequence[int], response_lengths: Sequence[int], *, padded_length: int | None = None
) -> list[slice]:
    """Finds the logits of each response of a batch, along one axis.

    Args:
        total_lengths: [B], tokens of prompt and response.
        response_lengths: [B].
        padded_length: None if the sequences follow each other (packed, logits [ΣT, V]). Otherwise each takes this many
            positions, with its padding at the end (logits [B·padded_length, V]).

    Returns:
        B slices.

    Raises:
        ShapeMismatch: Lengths are impossible, or a sequence is longer than `padded_length`.
    """
    if len(total_lengths) != len(response_lengths):
        raise ShapeMismatch(f"There are {len(total_lengths)} total and {len(response_lengths)} response lengths.")
    if padded_length is None:
        offsets = [0, *accumulate(total_lengths)]
    elif max(total_lengths, default=0) > padded_length:
        raise ShapeMismatch(f"A sequence of {max(total_lengths)} tokens is longer than {padded_length}.")
    else:
        offsets = [i * padded_length for i in range(len(total_lengths) + 1)]
    return [
        response_slice(total, response, offset=offset)
        for total, response, offset in zip(total_lengths, response_lengths, offsets[:-1], strict=True)
    ]
