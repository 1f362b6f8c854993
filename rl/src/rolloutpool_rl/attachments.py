"""Puts attachments to the tokens of samples: routed experts by position of a context, sampling masks by response id.

    client = RolloutClient(url)
    for result in batch.results():
        pieces = client.attachments(result.uid).pieces
        for sample, routed in zip(result.samples, routed_experts(result, pieces)):
            ...  # routed.experts [T - 1, layers, k] for the context prompt_ids + response_ids, of T ids

What is missing is marked and never made up (`present`): turns that were sampled before a worker ended, and those for
which the engine has sent nothing. A piece names its ids by a digest, so one of another rollout is an error.

The first turns of a fork are its parent's. Its contexts begin with the parent's ids, so the parent's rows, up to the
last one before the fork's own, stand at the same places.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rolloutpool_common.capabilities.engines.attachments import AttachedPiece, piece_digest
from rolloutpool_common.capabilities.engines.wire import AttachmentKind
from rolloutpool_common.protocol.result import RolloutResult, Sample
from rolloutpool_rl.errors import AttachmentForeign, ShapeMismatch


@dataclass(frozen=True, slots=True, eq=False)
class RoutedContext:
    """The routed experts of one sample, whose context has T ids."""

    experts: NDArray[np.integer]
    """[T - 1, …]: for each id the experts that have processed it; 0 where they are missing. An engine that does not
    say how many layers there are gives rows of one dimension: layers times experts of a token."""
    present: NDArray[np.bool_]
    """[T - 1]."""
    turns: NDArray[np.int32]
    """[T - 1]: the turn whose call has reported it; 0 where it is missing."""


@dataclass(frozen=True, slots=True, eq=False)
class SupportedResponse:
    """The sampling masks of one sample, whose response has R ids: that of id `i` is `ids[offsets[i]:offsets[i+1]]`."""

    offsets: NDArray[np.int64]
    """[R + 1]; an id that was not sampled, or whose mask is missing, has none."""
    ids: NDArray[np.uint32]
    logprobs: NDArray[np.float64]
    """[R]: of the sampled id among those of its mask; NaN where the engine has not said it."""
    present: NDArray[np.bool_]
    """[R]."""


def routed_experts(result: RolloutResult, pieces: Sequence[AttachedPiece]) -> list[RoutedContext]:
    """Puts the routed experts of a rollout to its samples.

    Args:
        result: Of the rollout.
        pieces: Its attachments.

    Returns:
        One for each sample.

    Raises:
        AttachmentForeign: A piece belongs to other ids.
        ShapeMismatch: Rows of one rollout have different shapes.
    """
    found = list(_with_rows(result, pieces, AttachmentKind.ROUTED_EXPERTS))
    arrays = [_array(piece, "experts") for _, piece in found]
    shape, dtype = (arrays[0].shape[1:], arrays[0].dtype) if arrays else ((0,), np.dtype(np.int32))
    contexts = [_empty_context(sample, shape, dtype) for sample in result.samples]
    for (index, piece), rows in zip(found, arrays, strict=True):
        context, part = contexts[index], slice(piece.start, piece.start + piece.rows)
        if rows.shape != (piece.rows, *shape) or rows.dtype != dtype or part.stop > len(context.present):
            raise ShapeMismatch(f"turn {piece.turn} has rows {rows.dtype}{rows.shape}, others have {dtype}{shape}")
        context.experts[part], context.present[part], context.turns[part] = rows, True, piece.turn
    return contexts


def sampling_masks(result: RolloutResult, pieces: Sequence[AttachedPiece]) -> list[SupportedResponse]:
    """Puts the sampling masks of a rollout to its samples; arguments and errors as of `routed_experts`."""
    lengths = [np.zeros(len(sample.response_ids), np.int64) for sample in result.samples]
    logprobs = [np.full(len(sample.response_ids), np.nan) for sample in result.samples]
    present = [np.zeros(len(sample.response_ids), np.bool_) for sample in result.samples]
    ids: list[list[NDArray[np.uint32]]] = [[] for _ in result.samples]
    for index, piece in sorted(
        _with_rows(result, pieces, AttachmentKind.SAMPLING_MASK), key=lambda found: (found[0], found[1].start)
    ):
        begin = piece.start - len(result.samples[index].prompt_ids)
        part, own = slice(begin, begin + piece.rows), _array(piece, "lengths")
        kept = _array(piece, "ids")
        if begin < 0 or own.shape != (piece.rows,) or len(kept) != own.sum():
            raise ShapeMismatch(f"turn {piece.turn} has {len(kept)} ids in {len(own)} masks, for {piece.rows} ids")
        lengths[index][part], present[index][part] = own, True
        ids[index].append(kept)
        if "logprobs" in piece.arrays:
            logprobs[index][part] = _array(piece, "logprobs")
    return [
        SupportedResponse(
            offsets=np.concatenate(([0], np.cumsum(lengths[index]))).astype(np.int64),
            ids=np.concatenate(ids[index]) if ids[index] else np.zeros(0, np.uint32),
            logprobs=logprobs[index],
            present=present[index],
        )
        for index in range(len(result.samples))
    ]


def _with_rows(
    result: RolloutResult, pieces: Sequence[AttachedPiece], kind: AttachmentKind
) -> Iterator[tuple[int, AttachedPiece]]:
    """Yields the pieces of a kind that have rows, with the sample to which each belongs."""
    for piece in pieces:
        if piece.kind is not kind or piece.lacks is not None:
            continue
        for index, sample in enumerate(result.samples):
            # A turn that a failed rollout does not deliver is in no sample.
            if any(segment.kind == "sampled" and segment.turn == piece.turn for segment in sample.segments):
                context = [*sample.prompt_ids, *sample.response_ids]
                if piece_digest(context[piece.first : piece.first + piece.n]) != piece.digest:
                    raise AttachmentForeign(
                        f"turn {piece.turn} of rollout {result.uid} has other ids at {piece.first} than its attachment"
                    )
                yield index, piece


def _empty_context(sample: Sample, shape: tuple[int, ...], dtype: np.dtype[np.integer]) -> RoutedContext:
    length = len(sample.prompt_ids) + len(sample.response_ids) - 1
    return RoutedContext(np.zeros((length, *shape), dtype), np.zeros(length, np.bool_), np.zeros(length, np.int32))


def _array(piece: AttachedPiece, name: str) -> NDArray[Any]:
    one = piece.arrays[name]
    return np.frombuffer(one.data, dtype=np.dtype(one.dtype)).reshape(one.shape)
