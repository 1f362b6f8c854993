"""A renderer beside the oracle: conversations of one template are played, and each case is counted."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.oracle.conversations import Case, Player, conversation
from tests.oracle.referee import MustRefuse
from tests.oracle.renderers import Refused, Renderer

_REASON = 100
"""Characters of a reason that are counted as one."""


@dataclass(frozen=True)
class Wrong:
    """A case in which the renderer gave other ids than the oracle, or ids where there are none."""

    template: str
    seed: str
    round: int
    ending: str
    case: dict[str, Any]
    expected: list[int] | None
    given: list[int]
    expected_text: str | None
    given_text: str


@dataclass
class Score:
    """What came of the cases of one template."""

    template: str
    conversations: int = 0
    exact: int = 0
    refused_rightly: int = 0
    refused: int = 0
    """Although there are right ids: safe, and a pity."""
    wrong: int = 0
    no_oracle: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    """Of refusals."""
    unknown: dict[str, int] = field(default_factory=dict)
    """Why there is no oracle."""
    endings: dict[str, int] = field(default_factory=dict)
    cases: list[Wrong] = field(default_factory=list)
    """The first wrong ones."""
    failure: str = ""
    """Why the template could not be played at all."""


def play(player: Player, directory: Path, renderer: Renderer, seeds: Iterator[str], keep: int = 5) -> Score:
    """Plays the conversations of these seeds; keeps so many wrong cases."""
    score = Score(player.referee.name)
    for seed in seeds:
        score.conversations += 1
        for number, case in enumerate(conversation(player, seed), 1):
            _count(score, player, directory, renderer, case, (seed, number), keep)
    return score


def _count(
    score: Score, player: Player, directory: Path, renderer: Renderer, case: Case, place: tuple[str, int], keep: int
) -> None:
    refusal = isinstance(case.verdict, MustRefuse)
    if case.expected is None and not refusal:
        score.no_oracle += 1
        _one_more(score.unknown, case.kind)
        return
    try:
        given = renderer(directory, case.history, case.new, case.sampled, case.tools, case.kwargs)
    except Refused as refused:
        if refusal:
            score.refused_rightly += 1
        else:
            score.refused += 1
            _one_more(score.reasons, f"{case.kind}: {refused}")
        return
    if given == case.expected:
        score.exact += 1
        _one_more(score.endings, case.kind)
        return
    score.wrong += 1
    if len(score.cases) < keep:
        encoder = player.referee.encoder
        shown = {name: getattr(case, name) for name in ("history", "new", "tools", "kwargs", "sampled")}
        text = None if case.expected is None else encoder.decode(case.expected)
        wrong = Wrong(score.template, *place, case.kind, shown, case.expected, given, text, encoder.decode(given))
        score.cases.append(wrong)


def _one_more(counts: dict[str, int], name: str) -> None:
    counts[name[:_REASON]] = counts.get(name[:_REASON], 0) + 1
