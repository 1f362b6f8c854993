"""Where a response's logits lie: the logit at position t predicts token t + 1.

So the logits of a response are those at [start - 1, end - 1), where [start, end) are its tokens, and a response has
as many logits as tokens only if a prompt stands in front of it. The response is everything from the first sampled
token on, tool tokens included; their values are read by GAE, their losses are masked.
"""

from collections.abc import Sequence
from itertools import accumulate

from rolloutpool_rl.errors import ShapeMismatch

__all__ = ["response_slice", "response_slices"]


def response_slice(total: int, response: int, *, offset: int = 0) -> slice:
    """The logits of the last `response` of `total` tokens of a sequence whose first token is at `offset`.

    Raises ShapeMismatch unless 0 ≤ response < total: without a prompt token nothing predicts the first token, and
    the slice would start at -1, at the other end.
    """
    if not 0 <= response < total or offset < 0:
        raise ShapeMismatch(f"A response of {response} tokens cannot end a sequence of {total} tokens at {offset}.")
    end = offset + total
    return slice(end - response - 1, end - 1)


def response_slices(
    total_lengths: Sequence[int], response_lengths: Sequence[int], *, padded_length: int | None = None
) -> list[slice]:
    """`response_slice` of each sequence of a batch, along one axis.

    Args:
        total_lengths: [B], tokens of prompt and response.
        response_lengths: [B].
        padded_length: None: the sequences follow each other (packed, logits [ΣT, V]). Else each takes this many
            positions, padding behind it (logits [B·padded_length, V]).

    Raises:
        ShapeMismatch: Lengths that cannot be, or a sequence longer than `padded_length`.
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
