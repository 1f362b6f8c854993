"""Where each token of a result came from, ready to be drawn. Pure: a result and a decoder in, runs out.

A run is a stretch of tokens that have everything in common: segment, turn, policy version and mask. The runs of a
sample tile its prompt and response without gap, in order, and no piece crosses a run's border. The mask is the
result's own and is never inferred; a mask of 1 where nothing was sampled is shown as the contradiction that it is.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

from rolloutpool_common.protocol.drift import NO_DRIFT
from rolloutpool_common.protocol.result import RolloutResult, Sample, SampleSegment, TurnSummary
from rolloutpool_trainer.errors import SamplesBroken

__all__ = ["PROMPT", "SAMPLED", "SHARED", "UNKNOWN", "Decode", "Piece", "Run", "SampleView", "view_samples"]

Decode = Callable[[Sequence[int]], str]

PROMPT, SHARED, SAMPLED, UNKNOWN = "prompt", "shared", "sampled", "unknown"
"""Kinds beside the segments' own: `shared` is a prompt that the sample before it has as well, `unknown` lies in no
segment."""

_REPLACEMENT = "\ufffd"
_LONGEST = 8
"""Tokens that one character may take before it counts as broken: four bytes, and as many that lead nowhere."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens that make whole characters together; nearly always one."""

    ids: tuple[int, ...]
    text: str
    """What they read; the ids as numbers where there is no decoder. Not made safe."""
    logprobs: tuple[float, ...] = ()
    """[len(ids)] where they are trained, else empty."""


@dataclass(frozen=True, slots=True)
class Run:
    """Tokens of equal provenance."""

    kind: str
    """The segment's kind, or prompt, shared or unknown."""
    start: int
    """Offset of its first token into the sample's prompt + response."""
    n: int
    trained: bool
    """Whether the mask is 1."""
    pieces: tuple[Piece, ...]
    turn: int | None = None
    """None in the prompt."""
    policy_version: str | None = None
    record: TurnSummary | None = None
    """What happened in its turn, on the first sampled run of that turn."""

    @property
    def text(self) -> str:
        """What the whole run reads."""
        return "".join(piece.text for piece in self.pieces)

    @property
    def contradicts(self) -> bool:
        """Trained, although its segment says that nobody sampled it."""
        return self.trained and self.kind not in (SAMPLED, UNKNOWN)


@dataclass(frozen=True, slots=True)
class SampleView:
    """One training sequence as runs."""

    number: int
    """From 1."""
    runs: tuple[Run, ...]
    total: int
    """Tokens of prompt and response."""
    prompt: int
    """Tokens of the prompt."""
    trained: int
    """Tokens with mask 1."""
    shared: int
    """How many first tokens the sample before it has too. Derived from the ids, not from the record."""

    @property
    def drift(self) -> str | None:
        """Why this sample begins: the drift of its first turn, where that is one."""
        first = next((run.record for run in self.runs if run.record is not None), None)
        return first.drift if first is not None and first.drift not in NO_DRIFT else None


def view_samples(result: RolloutResult, decode: Decode | None) -> list[SampleView]:
    """All samples of a result.

    Raises `SamplesBroken` where a sample's response lists differ in length.
    """
    views: list[SampleView] = []
    before: list[int] = []
    records = {record.turn: record for record in result.turns}
    for number, sample in enumerate(result.samples, 1):
        shared = min(_common(before, sample.prompt_ids), len(sample.prompt_ids))
        views.append(_view(number, sample, shared, records, decode))
        before = [*sample.prompt_ids, *sample.response_ids]
    return views


def _view(
    number: int, sample: Sample, shared: int, records: dict[int, TurnSummary], decode: Decode | None
) -> SampleView:
    ids, mask, logprobs = sample.response_ids, sample.response_mask, sample.response_logprobs
    if not len(ids) == len(mask) == len(logprobs):
        raise SamplesBroken(
            f"sample {number} has {len(ids)} response ids, {len(mask)} mask values and {len(logprobs)} "
            "log-probabilities; fetch the result again, and report it if it stays so"
        )
    runs: list[Run] = []
    seen: set[int] = set()
    last: tuple[int, ...] = ()
    prompt = len(sample.prompt_ids)
    for kind, start, end in ((SHARED, 0, shared), (PROMPT, shared, prompt)):
        if start < end:
            pieces = _pieces(sample.prompt_ids[start:end], (), decode, last)
            runs.append(Run(kind, start, end - start, trained=False, pieces=pieces))
            last = pieces[-1].ids
    owners = _owners(sample.segments, len(ids))
    for (index, value), group in groupby(range(len(ids)), key=lambda i: (owners[i], mask[i])):
        places = list(group)
        start, end = places[0], places[-1] + 1
        pieces = _pieces(ids[start:end], logprobs[start:end] if value else (), decode, last)
        last = pieces[-1].ids
        segment = None if index is None else sample.segments[index]
        turn = None if segment is None else segment.turn
        opens = segment is not None and segment.kind == SAMPLED and segment.turn not in seen
        if opens and turn is not None:
            seen.add(turn)
        runs.append(
            Run(
                UNKNOWN if segment is None else segment.kind,
                prompt + start,
                end - start,
                trained=bool(value),
                pieces=pieces,
                turn=turn,
                policy_version=None if segment is None else segment.policy_version,
                record=records.get(turn) if opens and turn is not None else None,
            )
        )
    return SampleView(number, tuple(runs), prompt + len(ids), prompt, sum(map(bool, mask)), shared)


def _owners(segments: Sequence[SampleSegment], n: int) -> list[int | None]:
    """For each of n response tokens the index of its segment; a record that does not tile is drawn as it is."""
    owners: list[int | None] = [None] * n
    for index, segment in enumerate(segments):
        for place in range(max(segment.start, 0), min(segment.start + segment.n, n)):
            owners[place] = index
    return owners


def _common(ours: Sequence[int], theirs: Sequence[int]) -> int:
    """How many first ids two contexts have in common."""
    shorter = min(len(ours), len(theirs))
    return next((i for i in range(shorter) if ours[i] != theirs[i]), shorter)


def _pieces(
    ids: Sequence[int], logprobs: Sequence[float], decode: Decode | None, before: tuple[int, ...]
) -> tuple[Piece, ...]:
    """The ids in pieces of whole characters. `before` is the piece in front: a first token reads differently."""
    if decode is None:
        return tuple(
            Piece((token,), f"{token} ", tuple(logprobs[place : place + 1])) for place, token in enumerate(ids)
        )
    found: list[Piece] = []
    start = 0
    while start < len(ids):
        length, text = _whole(ids[start : start + _LONGEST], decode, before)
        before = tuple(ids[start : start + length])
        found.append(Piece(before, text, tuple(logprobs[start : start + length])))
        start += length
    return tuple(found)


def _whole(ids: Sequence[int], decode: Decode, before: tuple[int, ...]) -> tuple[int, str]:
    """How many of the first ids make whole characters, and what these read; 1 where none of them does."""
    for length in range(1, len(ids) + 1):
        text = _continuation(ids[:length], decode, before)
        if _REPLACEMENT not in text:
            return length, text
    return 1, _continuation(ids[:1], decode, before)


def _continuation(ids: Sequence[int], decode: Decode, before: tuple[int, ...]) -> str:
    """What ids read behind others: decoders drop the space in front of a text's first word."""
    lead = decode(before) if before else ""
    whole = decode([*before, *ids])
    return whole[len(lead) :] if whole.startswith(lead) and not lead.endswith(_REPLACEMENT) else decode(ids)
