"""Segments: runs of ids that have one origin. The mask of an id follows from its segment alone."""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import NamedTuple


class SegmentKind(StrEnum):
    """Says where a run of ids came from."""

    PROMPT = "prompt"
    """What a sample starts with, as the trainer echoed it or as we rendered it."""
    SAMPLED = "sampled"
    """What the policy sampled. The only kind that can be trained."""
    GLUE = "glue"
    """Text of the environment and of the template between two sampled turns."""
    SYNTH_CLOSE = "synth_close"
    """The token that closes a turn whose policy sampled none."""


class Segment(NamedTuple):
    """A run of ids with one origin, in the ledger's context."""

    kind: SegmentKind
    start: int
    """Offset of its first id in the context."""
    n: int
    """Number of ids, at least 1."""
    turn: int
    """The model call that sampled it or after which it was appended; 0 for the first prompt."""
    logprobs: tuple[float, ...] = ()
    """[n] where `kind` is SAMPLED, else empty."""
    policy_version: str | None = None
    """The trainer's name for the weights that sampled it."""
    train: bool = False
    """Whether sampled ids are trained; always false for other kinds."""

    @property
    def end(self) -> int:
        """Offset of the first id after it."""
        return self.start + self.n

    @property
    def trained(self) -> bool:
        """Whether its mask is 1."""
        return self.kind is SegmentKind.SAMPLED and self.train


def cut(segments: Sequence[Segment], end: int) -> list[Segment]:
    """Cuts segments off at an offset."""
    kept = [segment for segment in segments if segment.start < end]
    if kept and kept[-1].end > end:
        last = kept[-1]
        kept[-1] = last._replace(n=end - last.start, logprobs=last.logprobs[: end - last.start])
    return kept


def mask_of(segments: Iterable[Segment]) -> list[int]:
    """1 per trained id, 0 per other id."""
    mask: list[int] = []
    # Segment by segment: a chain over all of them takes five times as long, and stops other threads meanwhile.
    for segment in segments:
        mask += [int(segment.trained)] * segment.n
    return mask
