"""Where a response's logits lie: the logit at position t predicts token t + 1.

A response has the tokens [start, end), so its logits are those at [start - 1, end - 1). For example, with a prompt of
3 and a response of 2 tokens, tokens 3 and 4 are predicted by the logits at 2 and 3. Without a prompt token, nothing
predicts the first one. The response is everything from the first sampled token on, tool tokens included: GAE reads
their values, and their losses are masked.
"""

from collections.abc import Sequence
from itertools import accumulate

from rolloutpool_rl.errors import ShapeMismatch

__all__ = ["response_slice", "response_slices"]


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
