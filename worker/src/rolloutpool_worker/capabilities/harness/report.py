"""Says at a session's end what each line of talk is, and which sampled tokens are trained.

1. The *chain* ends with the line of the session's last call with tools. Before a line of the chain stands the line with
   the same tools and system text that had the last call before it began. The first of them is `main`, the others are
   `continuation`s: what follows a compaction, or a reply that the program has dropped.
2. A line outside the chain is `side` if it is one call without tools, else `child`.
3. Trained are the kinds that the rollout names. Of their turns these are left out as `unfollowed`: those that the
   program has dropped from the history with which it went on, and the last one of a line that ran beside another one
   with the same beginning (best of n). A sub-agent's last reply is its answer, so it is trained. What a program said
   that died, and the one started after it did not repeat, is left out as `agent_restarted`.
4. A program may give its history back in other words: it takes old results out, or tells a call as text (smolagents).
   Then another line begins, although nothing was dropped: what was sampled had its effect, and is trained.

Each sampled token is in one sample, or is counted in the line's `left_out`.
"""

import json
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rolloutpool_common.capabilities.harness.wire import AskedWay, HarnessReport, LineKind, LineReport
from rolloutpool_common.protocol.messages import Message
from rolloutpool_common.protocol.result import RolloutResult, Sample
from rolloutpool_common.tokens.versions import version_bounds
from rolloutpool_worker.capabilities.harness.lines import Shape, TalkLine, common_length, hashes_of

MOST_WAYS = 50
"""Ways of asking that a report names; a program may change a field with each call."""


@dataclass(frozen=True)
class Judged:
    """What a line is, and how many of its turns are of use."""

    kind: LineKind
    why: str
    parent: TalkLine | None
    turns: int


@dataclass(frozen=True)
class SessionCalls:
    """The calls of a session's programs, when it has ended."""

    taken: int
    """How many there were."""
    asked: Sequence[Mapping[str, Any]] = ()
    """How each of them was asked, besides its prompt."""
    lost: Collection[int] = ()
    """Those that were made by a program that died, and not by the one that was started after it."""
    places: int = 1
    """How often the program was started."""


class _Family:
    """The lines that have tools and system text in common, in their order.

    A program may begin a line with each of its calls, so no line is compared with all others.
    """

    def __init__(self, lines: Sequence[TalkLine]) -> None:
        self.lines = lines
        self._lengths = sorted({line.begins for line in lines})
        # By hash: the first two lines that begin so, and the first two whose whole beginning that is.
        self._begin: dict[int, list[TalkLine]] = {}
        self._whole: dict[int, list[TalkLine]] = {}
        self.before: dict[int, TalkLine] = {}
        """By number: the line from which a line goes on in other words."""
        self.after: dict[int, TalkLine] = {}
        """By number: the line in which its program goes on from a line, in other words."""
        # Likewise by hash: those from which no line has gone on so far.
        ends: dict[int, list[TalkLine]] = {}
        for line in lines:
            nearest: list[TalkLine] = []
            for length, key in self._keys(line):
                for found in (self._begin, self._whole) if length == line.begins else (self._begin,):
                    if len(known := found.setdefault(key, [])) < 2:
                        known.append(line)
                alike = ends.setdefault(key, [])
                if length == line.begins:
                    alike.append(line)
                elif alike:
                    nearest = alike
            if nearest and _goes_on(nearest[-1], line):
                self.before[line.number] = before = nearest.pop()
                self.after[before.number] = line

    def _keys(self, line: TalkLine) -> Iterator[tuple[int, int]]:
        """Hashes a line's beginning, up to each length that a line of the family begins with."""
        lengths = iter(self._lengths)
        wanted = next(lengths, None)
        for length, key in enumerate(hashes_of(line.shapes[: line.begins]), 1):
            if length == wanted:
                yield length, key
                wanted = next(lengths, None)

    def twin_of(self, line: TalkLine) -> TalkLine | None:
        """Returns the first other line with which a line shares its beginning.

        One that goes on from another one shares what it begins with, and not what that one began with.
        """
        begun = line.number not in self.before
        found = [line.parent] if begun and line.parent is not None and _is_alike(line.parent, line) else []
        for length, key in self._keys(line):
            if length == line.begins:
                found += [*self._whole.get(key, ()), *self._begin.get(key, ())]
            elif begun:
                found += self._whole.get(key, ())
        twins = [one for one in found if one is not line and (one is line.parent or _begin_alike(one, line))]
        return min(twins, key=lambda one: one.number, default=None)


def judge(lines: Sequence[TalkLine], lost: Collection[int] = ()) -> list[Judged]:
    """Says of each line what it is; `lost` are calls of programs that died."""
    chain = _chain([line for line in lines if _lives(line, lost)])
    places = {id(line): place for place, line in enumerate(chain)}
    parents = {id(line.parent) for line in lines}
    grouped: dict[tuple[str, Shape | None], list[TalkLine]] = {}
    for line in lines:
        grouped.setdefault((line.tools_digest, line.system), []).append(line)
    families: dict[tuple[str, Shape | None], _Family] = {}
    found: list[Judged] = []
    for line in lines:
        place = places.get(id(line))
        if place is not None:
            after = chain[place + 1] if place + 1 < len(chain) else None
            followed = len(line.replies) if after is None else _followed(line, after)
            if place == 0:
                kind, why, parent = LineKind.MAIN, "it leads to the session's last call with tools", line.parent
            else:
                before = chain[place - 1]
                kind, parent = LineKind.CONTINUATION, before
                why = f"it begins after the last call of line {before.number}, with its tools and system text"
            found.append(Judged(kind, why, parent, followed))
        elif not line.has_tools and len(line.calls) == 1 and id(line) not in parents:
            found.append(Judged(LineKind.SIDE, "it is one call without tools", line.parent, len(line.replies)))
        else:
            key = line.tools_digest, line.system
            if key not in families:
                families[key] = _Family(grouped[key])
            found.append(_child(line, families[key]))
    return found


def _lives(line: TalkLine, lost: Collection[int]) -> bool:
    return any(n not in lost for n in line.calls)


def _chain(lines: Sequence[TalkLine]) -> list[TalkLine]:
    """Returns the lines that belong together as the session's main one, in their order."""
    if not lines:
        return []
    candidates = [line for line in lines if line.has_tools] or list(lines)
    chain = [max(candidates, key=_last_call)]
    alike = sorted((line for line in lines if _is_alike(line, chain[0])), key=_last_call)
    place = len(alike)
    while True:
        first = chain[-1]
        place = bisect_left(alike, first.first, hi=place, key=_last_call)
        # A program has not gone on from one line in the other where it only asked the same again.
        while place and alike[place - 1].begins == first.begins and _begin_alike(alike[place - 1], first):
            place -= 1
        if not place:
            return chain[::-1]
        chain.append(alike[place - 1])


def _last_call(line: TalkLine) -> int:
    return line.calls[-1]


def _followed(line: TalkLine, after: TalkLine) -> int:
    """How many replies of a line are of use where its program went on in another line.

    A history that begins as this line does, and leaves its last replies out, has dropped them. One that is made anew,
    as after a compaction, was made of all of them. So was one in which an assistant says something behind what the two
    have in common; but where that is a reply of the line, those after it were dropped.
    """
    common, told = _told(line, after)
    ends = [end for end, _ in line.replies]
    if told is not None:
        return max((n for n, end in enumerate(ends, 1) if line.shapes[end - 1] == told), default=len(ends))
    goes_back = bool(ends) and (common >= ends[0] or common >= ends[-1] - 1)
    return sum(end <= common for end in ends) if goes_back else len(ends)


def _told(line: TalkLine, after: TalkLine) -> tuple[int, Shape | None]:
    """How many messages a line and another one's history share, and what an assistant says last behind them there."""
    history = after.shapes[: after.begins]
    common = common_length(line.shapes, history)
    return common, next((shape for shape in reversed(history[common:]) if shape[0] == "assistant"), None)


def _goes_on(line: TalkLine, after: TalkLine) -> bool:
    """Whether a line that begins as another one did is that one's talk, given back in other words."""
    return line.calls[-1] < after.first and _told(line, after)[1] is not None


def _child(line: TalkLine, family: _Family) -> Judged:
    if len(family.lines) == 1:
        return Judged(LineKind.CHILD, "it has tools or a system text of its own", line.parent, len(line.replies))
    before, after = family.before.get(line.number, line.parent), family.after.get(line.number)
    if after is not None:
        why = f"its program goes on in line {after.number}, with this history in other words"
        return Judged(LineKind.CHILD, why, before, _followed(line, after))
    twin = family.twin_of(line)
    if twin is None:
        return Judged(LineKind.CHILD, "it has a beginning of its own", before, len(line.replies))
    why = f"it runs beside line {twin.number} from the same beginning, and nothing follows its last reply"
    return Judged(LineKind.CHILD, why, twin, max(0, len(line.replies) - 1))


def _is_alike(one: TalkLine, other: TalkLine) -> bool:
    return one.tools_digest == other.tools_digest and one.system == other.system


def _begin_alike(one: TalkLine, other: TalkLine) -> bool:
    """Whether two lines have one beginning: the same messages before a reply of either."""
    length = min(one.begins, other.begins)
    return one.shapes[:length] == other.shapes[:length]


def complete(
    result: RolloutResult,
    lines: Sequence[TalkLine],
    samples_of: Sequence[int],
    trained: Collection[LineKind],
    calls: SessionCalls,
) -> RolloutResult:
    """Adds the report, and takes out of the samples what is not trained.

    Args:
        result: With the samples of all lines, one line after the other.
        lines: The lines.
        samples_of: How many samples each of them has.
        trained: The kinds that are trained.
        calls: Those of the session.
    """
    samples: list[Sample] = []
    reports: list[LineReport] = []
    start = 0
    for line, found, n in zip(lines, judge(lines, calls.lost), samples_of, strict=True):
        own, start = result.samples[start : start + n], start + n
        kept, left_out = _kept(own, found, sum(n not in calls.lost for n in line.calls), found.kind in trained)
        reports.append(
            LineReport(
                line=line.number,
                kind=found.kind,
                why=found.why,
                parent=None if found.parent is None else found.parent.number,
                turns=len(line.replies),
                tokens=_sampled(own),
                trained_tokens=sum(sum(sample.response_mask) for sample in kept),
                samples=list(range(len(samples), len(samples) + len(kept))),
                left_out={why: tokens for why, tokens in left_out.items() if tokens},
            )
        )
        samples += kept
    report = HarnessReport(calls=calls.taken, lines=reports, places=calls.places, asked=_ways(calls.asked))
    # The replay record has all that was sampled, and is no record of what is delivered.
    changes: dict[str, object] = {"samples": samples, "harness": report, "replay": None}
    # What a program said that died is told only where the one after it has said nothing.
    if chain := _chain([line for line in lines if _lives(line, calls.lost)] or lines):
        changes["messages"] = [Message.model_validate(message) for message in chain[-1].real]
    return result.model_copy(update=changes)


def _kept(own: Sequence[Sample], found: Judged, alive: int, trained: bool) -> tuple[list[Sample], dict[str, int]]:
    """Cuts a line's samples to what is trained; returns them, and how many ids are left out, and why."""
    sampled = _sampled(own)
    if not trained:
        return [], {"kind": sampled}
    living = _cut(own, alive)
    kept = _cut(living, found.turns)
    return kept, {"agent_restarted": sampled - _sampled(living), "unfollowed": _sampled(living) - _sampled(kept)}


def _ways(asked: Sequence[Mapping[str, Any]]) -> list[AskedWay]:
    """Gathers the calls that were asked alike; ways beyond `MOST_WAYS` are left out."""
    found: dict[str, AskedWay] = {}
    for n, sent in enumerate(asked, 1):
        key = json.dumps(sent, sort_keys=True)
        if key in found:
            found[key].calls.append(n)
        elif sent and len(found) < MOST_WAYS:
            found[key] = AskedWay(dialect=sent["dialect"], fields=sent["fields"], calls=[n])
    return list(found.values())


def _cut(samples: Sequence[Sample], turn: int) -> list[Sample]:
    return [cut for sample in samples if (cut := cut_after(sample, turn)) is not None]


def _sampled(samples: Sequence[Sample]) -> int:
    return sum(segment.n for sample in samples for segment in sample.segments if segment.kind == "sampled")


def cut_after(sample: Sample, turn: int) -> Sample | None:
    """Ends a sample with the last id that was sampled in this turn or before; None where there is none."""
    kept = [segment for segment in sample.segments if segment.kind == "sampled" and segment.turn <= turn]
    if not kept:
        return None
    end = kept[-1].start + kept[-1].n
    if end == len(sample.response_ids):
        return sample
    oldest, newest = version_bounds(segment.policy_version for segment in kept)
    return sample.model_copy(
        update={
            "response_ids": sample.response_ids[:end],
            "response_mask": sample.response_mask[:end],
            "response_logprobs": sample.response_logprobs[:end],
            "segments": [segment for segment in sample.segments if segment.start < end],
            "version_min": oldest,
            "version_max": newest,
        }
    )
