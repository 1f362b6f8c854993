"""Draws a sample's tokens on a terminal: what is trained (mask 1) is in ⟦brackets⟧, underlined and green.

No fact is shown by colour alone: brackets mark what is trained, and ⟪marks⟫ say what a run is. Text of a model stays
text: it cannot move the cursor, set colours, or draw brackets.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.text import Text

from rolloutpool_common.protocol.drift import NO_DRIFT
from rolloutpool_common.protocol.result import TurnSummary
from rolloutpool_trainer.viewer.runs import PROMPT, SAMPLED, SHARED, Run, SampleView
from rolloutpool_trainer.viewer.sanitize import CLOSE, MARK_CLOSE, MARK_OPEN, OPEN, printable, sanitize

TRAINED = "bold green underline"
UNTRAINED = "dim"
LEAD = "dim italic"
MARK = "cyan"
WRONG = "bold magenta"
TURN_COLUMNS = ("turn", "prompt", "sampled", "mask", "finish", "stop", "tools", "policy", "drift")


def mask_runs(ids: Sequence[int], mask: Sequence[int]) -> Iterator[tuple[int, list[int]]]:
    """Yields the runs of tokens with the same mask."""
    for value, group in groupby(zip(ids, mask, strict=True), key=lambda pair: pair[1]):
        yield value, [token for token, _ in group]


def token_view(view: SampleView, *, marks: bool = True, prompt_tail: int | None = None) -> Text:
    """Makes styled text of a sample."""
    text = Text()
    for run in view.runs:
        if marks:
            text.append("\n" if text else "").append_text(_mark(run, view)).append(" ")
        if run.kind == SHARED:
            if not marks:
                text.append(f"(… {run.n:,} tokens as in the sample before) ", style=LEAD)
        elif run.kind == PROMPT:
            text.append_text(_prompt(run, prompt_tail))
        elif run.trained:
            text.append(OPEN, style="green").append(sanitize(run.text), style=TRAINED).append(CLOSE, style="green")
        else:
            text.append(sanitize(run.text), style=UNTRAINED)
    return text


def legend(view: SampleView) -> Text:
    """Explains the styles, with counts."""
    return Text.assemble(
        (OPEN, "green"),
        ("mask 1", TRAINED),
        (CLOSE, "green"),
        ": sampled by the policy, trained   ",
        ("mask 0", UNTRAINED),
        ": put there by template and tools   ",
        ("prompt", LEAD),
        f"   trained {view.trained:,} of {view.total:,} tokens",
    )


def turn_rows(turns: Sequence[TurnSummary]) -> list[tuple[object, ...]]:
    """Makes a row of `TURN_COLUMNS` for each model call."""
    return [
        (
            turn.turn,
            turn.prompt_tokens,
            turn.sampled_tokens,
            "none" if turn.mask_sent is None else f"{turn.mask_sent:,}",
            turn.finish_reason or "none",
            turn.stop,
            turn.tool_calls,
            turn.policy_version or "none",
            Text(turn.drift) if turn.drift in NO_DRIFT else Text(f"≠ {printable(turn.drift)}", style=WRONG),
        )
        for turn in turns
    ]


def _prompt(run: Run, tail: int | None) -> Text:
    text = Text()
    pieces = run.pieces
    if tail is not None and len(pieces) > tail:
        text.append(f"(… {sum(len(p.ids) for p in pieces[: len(pieces) - tail]):,} tokens of the prompt) ", style=LEAD)
        pieces = pieces[len(pieces) - tail :]
    return text.append(sanitize("".join(piece.text for piece in pieces)), style=LEAD)


def _mark(run: Run, view: SampleView) -> Text:
    if run.kind == SHARED:
        said = [f"{run.n:,} tokens as in sample {view.number - 1}"]
    elif run.kind == SAMPLED:
        said = [f"turn {run.turn}", f"{run.n:,} sampled", *([] if run.trained else ["not trained"])]
    else:
        said = [f"{run.kind} {run.n:,}", *([] if run.turn is None else [f"turn {run.turn}"])]
    if run.policy_version is not None:
        said.append(f"policy {run.policy_version}")
    mark = Text(MARK_OPEN + sanitize(" · ".join(said)).replace("\n", ""), style=MARK)
    wrong = []
    if run.record is not None and run.record.drift not in NO_DRIFT:
        wrong.append(f"≠ {run.record.drift}")
    if run.kind == PROMPT and view.fork:
        wrong.append(f"fork of sample {view.number - 1}" + (f": {view.drift}" if view.drift else ""))
    if run.contradicts:
        wrong.append("mask 1 on what was not sampled")
    for fault in wrong:
        mark.append(" · ").append(sanitize(fault).replace("\n", ""), style=WRONG)
    return mark.append(MARK_CLOSE)
