"""Cuts a result into runs of tokens with one origin, ready to be drawn. A pure function of result and decoder.

1. A *run* is a stretch of tokens with the same segment, turn, policy version and mask. The runs of a sample cover its
   prompt and response without gap, in order.
2. Inside a run, a *piece* is the smallest group of tokens that decodes to whole characters: nearly always one token.
3. Ids at the start of a prompt that the sample before it has too are a run of their own (`shared`), so that a fork need
   not be read twice.

The mask is the result's own and is never inferred. Mask 1 where nothing was sampled is shown as a contradiction.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

from rolloutpool_common.protocol.drift import NO_DRIFT
from rolloutpool_common.protocol.result import RolloutResult, Sample, SampleSegment, TurnSummary
from rolloutpool_trainer.errors import SamplesBroken

Decode = Callable[[Sequence[int]], str]

PROMPT, SHARED, SAMPLED, UNKNOWN = "prompt", "shared", "sampled", "unknown"
"""Kinds in addition to those of segments: `shared` is a prompt that the sample before it has too, `unknown` is in no
segment."""

_REPLACEMENT = "\ufffd"
_LONGEST = 8
"""Tokens that one character may take before it counts as broken: four for its bytes, and four to spare."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens that together make whole characters; nearly always one."""

    ids: tuple[int, ...]
    text: str
    """Their text, not made safe yet; without a decoder, the ids as numbers."""
    logprobs: tuple[float, ...] = ()
    """[len(ids)] if they are trained, else empty."""


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive tokens with one origin: the same segment, turn, policy version and mask."""

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
    """What happened in its turn; set on the first sampled run of that turn."""

    @property
    def text(self) -> str:
        """The text of the whole run."""
        return "".join(piece.text for piece in self.pieces)

    @property
    def contradicts(self) -> bool:
        """Whether it is trained although its segment says that the policy did not sample it."""
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
    """How many first tokens the sample before it has too; found by comparing ids."""
    fork: bool
    """Whether it goes on in the line of talk of the sample before it, from which it forked."""

    @property
    def drift(self) -> str | None:
        """Why this sample begins: the drift of its first turn; None if there was none."""
        first = next((run.record for run in self.runs if run.record is not None), None)
        return first.drift if first is not None and first.drift not in NO_DRIFT else None


def view_samples(result: RolloutResult, decode: Decode | None) -> list[SampleView]:
    """Cuts all samples of a result into runs."""
    views: list[SampleView] = []
    before: list[int] = []
    records = {record.turn: record for record in result.turns}
    lines = len(records) < len(result.turns)
    if lines:
        # Each line counts its turns from 1, so a turn's number does not say which of them its record is of.
        records = {}
    last = 0
    for number, sample in enumerate(result.samples, 1):
        shared = min(common_ids(before, sample.prompt_ids), len(sample.prompt_ids))
        turns = [segment.turn for segment in sample.segments if segment.kind == SAMPLED]
        fork = number > 1 and (not lines or min(turns, default=0) > last)
        last = max(turns, default=0)
        views.append(_view(number, sample, shared, records, decode, fork=fork))
        # With the response, because a fork's prompt contains the turns that came before it.
        before = [*sample.prompt_ids, *sample.response_ids]
    return views


def common_ids(ours: Sequence[int], theirs: Sequence[int]) -> int:
    """Counts the first ids that two contexts have in common."""
    shorter = min(len(ours), len(theirs))
    return next((i for i in range(shorter) if ours[i] != theirs[i]), shorter)


def _view(
    number: int, sample: Sample, shared: int, records: dict[int, TurnSummary], decode: Decode | None, *, fork: bool
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
        # At mask 0 the log-probabilities are 0.0, which would read as certain.
        pieces = _pieces(ids[start:end], logprobs[start:end] if value else (), decode, last)
        last = pieces[-1].ids
        segment = None if index is None else sample.segments[index]
        turn = None if segment is None else segment.turn
        # A turn may have several sampled runs, for example if the weights changed; its record is shown once.
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
    return SampleView(number, tuple(runs), prompt + len(ids), prompt, sum(map(bool, mask)), shared, fork)


def _owners(segments: Sequence[SampleSegment], n: int) -> list[int | None]:
    """Finds the segment of each of n response tokens, by index. A token that no segment covers has None."""
    owners: list[int | None] = [None] * n
    for index, segment in enumerate(segments):
        for place in range(max(segment.start, 0), min(segment.start + segment.n, n)):
            owners[place] = index
    return owners


def _pieces(
    ids: Sequence[int], logprobs: Sequence[float], decode: Decode | None, before: tuple[int, ...]
) -> tuple[Piece, ...]:
    """Cuts ids into pieces. `before` is the piece before them, because a first token decodes differently."""
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
    """Counts the first ids that make whole characters, and decodes them; 1 if no number of them does."""
    for length in range(1, len(ids) + 1):
        text = _continuation(ids[:length], decode, before)
        if _REPLACEMENT not in text:
            return length, text
    return 1, _continuation(ids[:1], decode, before)


def _continuation(ids: Sequence[int], decode: Decode, before: tuple[int, ...]) -> str:
    """Decodes ids as they continue others: decoders drop the space before a text's first word."""
    # If the piece before is a broken character, its bytes could merge with ours; then the ids are decoded alone.
    lead = decode(before) if before else ""
    whole = decode([*before, *ids])
    return whole[len(lead) :] if whole.startswith(lead) and not lead.endswith(_REPLACEMENT) else decode(ids)
