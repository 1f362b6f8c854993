"""Holds a delta against a full render of the same conversation, which shares nothing with the delta but the template.

A trainer that keeps ids and the pool render deltas with the same code. So where that code is wrong, their prompts agree
all the same, and no echo shows it. A full render (`apply_chat_template` of all messages, tokenised as one text) is made
in another way: without sentinels and cuts.

What the policy sampled is compared with nothing, because templates reprint it: they drop thinking and write calls in
their own way. What must agree is what nobody sampled:

1. The full render must end with the delta's ids.
2. What stands before these in the full render must end as the sampled turn ends: the turn's end must neither be missing
   nor be written twice. Example: the policy sampled `…<|im_end|>`, and the delta begins with `<|im_end|>` once more.
   Then the full render ends with the delta, but no `<|im_end|>` stands before it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rolloutpool_common.protocol.messages import text_of
from rolloutpool_common.rendering.codec import Codec
from rolloutpool_common.rendering.delta import Delta, Placement
from rolloutpool_common.rendering.errors import TemplateRefused
from rolloutpool_common.rendering.template import Message, Tools, normalise
from rolloutpool_common.rendering.tokenizer import ChatTokenizer

_LOOKED_AT = 64
"""Ids before the delta that are looked at; no family ends a turn with more."""
_SAID = 20
"""Characters at the end of what a turn says by which that end is recognised in the full render."""


@dataclass(frozen=True, slots=True)
class RenderedDelta:
    """A delta, and the conversation that it continues."""

    messages: Sequence[Message]
    appended: int
    """How many of these, the last ones, are new since the policy's turn."""
    delta: Delta
    """What they add."""
    sampled: Sequence[int]
    """The last ids of the policy's turn."""


@dataclass(frozen=True, slots=True)
class EndedTurn:
    """The turn of the policy before the delta."""

    sampled: Sequence[int]
    """Its last ids."""
    calls: bool
    said: str
    """Its message's content; empty where it makes calls, which templates write after that."""


@dataclass(frozen=True, slots=True)
class DeltaFault:
    """Says where a delta is not what a full render has. It holds no text of the conversation."""

    what: str
    behind: int
    """How many ids at the end of both prompts agree."""
    ours: int | None
    """Our id before these; None where the fault is in the end of the sampled turn."""
    full: int | None
    """The full render's id before these; None where it has no more."""


_Piece = tuple[str, bool]
"""A control string, or the text between two; and whether it is a control string."""


def check_delta(
    tokenizer: ChatTokenizer,
    made: RenderedDelta,
    *,
    tools: Tools | None = None,
    template_kwargs: Mapping[str, Any] | None = None,
) -> DeltaFault | None:
    """Renders a whole conversation, and compares the delta of its last messages with that.

    It costs as much as the conversation is long: 30 ms at 8,000 ids, 170 ms at 35,000.
    """
    normal, appended = normalise(made.messages), made.appended
    past, turn = normal[:-appended], normal[-appended - 1]
    calls = bool(turn.get("tool_calls"))
    try:
        placement, rendered = tokenizer.delta_placement(
            made.messages[-appended:], history=past, tools=tools, template_kwargs=template_kwargs
        )
        full = tokenizer.render_prompt(
            [*_comparable(past[:-1], placement), rendered, *normal[-appended:]],
            tools=None if placement.moves_tools else tools,
            template_kwargs=template_kwargs,
        )
    except TemplateRefused:
        return None
    typed = tokenizer.codec.escaper.has_edges([message["content"] for message in normal])
    ended = EndedTurn(made.sampled, calls, "" if calls else text_of(turn))
    return _delta_fault(tokenizer, full, [*made.delta.close_ids, *made.delta.glue_ids], ended, typed=typed)


def _comparable(past: Sequence[Message], placement: Placement) -> list[Message]:
    """The history without what deltas leave out, because the policy has seen it before."""
    return [m for m in past if not (placement.moves_system and m["role"] in ("system", "developer"))]


def _delta_fault(
    tokenizer: ChatTokenizer, full: Sequence[int], delta: Sequence[int], turn: EndedTurn, *, typed: bool
) -> DeltaFault | None:
    """Compares a delta with a full render; `typed` says whether the messages may spell a part of a control string."""
    codec, same = tokenizer.codec, 0
    while same < min(len(delta), len(full)) and delta[-1 - same] == full[-1 - same]:
        same += 1
    # With as many ids again, however the two are cut.
    theirs, ours = _pieces(codec, full[-2 * len(delta) - _LOOKED_AT :]), _pieces(codec, delta)
    before = _without_end(theirs, ours)
    rest = delta[: len(delta) - same]
    # The first text of a delta continues text that was sampled, and may be cut otherwise than in one piece with it.
    split = typed or not any(token_id in codec.control_strings for token_id in rest)
    if before is None or (rest and not split):
        return DeltaFault(
            "what follows the sampled turn",
            same,
            rest[-1] if rest else None,
            full[len(full) - same - 1] if same < len(full) else None,
        )
    stops = frozenset(codec.control_strings[token_id] for token_id in tokenizer.stop_ids)
    sampled = _pieces(codec, turn.sampled[-_LOOKED_AT:])
    what = _end_fault(before, sampled, ours, turn, stops, closes=tokenizer.closes_turns)
    if what is None:
        return None
    return DeltaFault(what, same, None, full[len(full) - same - 1] if same < len(full) else None)


def _pieces(codec: Codec, ids: Sequence[int]) -> list[_Piece]:
    found: list[_Piece] = []
    start = 0
    for i, token_id in enumerate(ids):
        if token_id in codec.control_strings:
            if start < i:
                found.append((codec.decode(ids[start:i]), False))
            found.append((codec.control_strings[token_id], True))
            start = i + 1
    return [*found, (codec.decode(ids[start:]), False)] if start < len(ids) else found


def _without_end(whole: list[_Piece], end: list[_Piece]) -> list[_Piece] | None:
    """Returns what is left of the pieces in front of the end; None if they do not end so."""
    if not end or len(whole) < len(end) or whole[len(whole) - len(end) + 1 :] != end[1:]:
        return None
    (text, control), (theirs, theirs_control) = end[0], whole[-len(end)]
    if control != theirs_control or not theirs.endswith(text) or (control and text != theirs):
        return None
    left = theirs[: len(theirs) - len(text)]
    return [*whole[: -len(end)], *([(left, False)] if left else [])]


def _end_of(pieces: list[_Piece]) -> tuple[str, str]:
    """The last control string, if only white space follows it, and that white space."""
    space = ""
    if pieces and not pieces[-1][1]:
        *pieces, (space, _) = pieces
    if space.strip() or not pieces:
        return "", ""
    return pieces[-1][0], space


def _end_fault(
    before: list[_Piece],
    sampled: list[_Piece],
    ours: list[_Piece],
    turn: EndedTurn,
    stops: frozenset[str],
    *,
    closes: bool,
) -> str | None:
    """What is wrong with the end of the turn: `before` is what the template has there, `sampled` what was sampled."""
    (there, their_space), (here, our_space) = _end_of(before), _end_of(sampled)
    # A stop that is not the template's own takes the place of that.
    if here and (here == there or (here in stops and there in stops)):
        if not our_space.startswith(their_space):
            return "white space after the sampled end of the turn is missing"
        over = our_space.removeprefix(their_space)
        twice = over and not ours[0][1] and ours[0][0].startswith(over)
        return "white space after the sampled end of the turn is there twice" if twice else None
    if here in stops:
        # Some families close turns with text alone.
        missing = "what follows the sampled end of the turn is missing" if (here, True) in before[-3:] else None
        # Others end calls with a token that is no stop, and go on in the same turn.
        if ours[0] == (here, True) or (closes and not (turn.calls and there)):
            return missing or "the end of the turn is there twice"
        return missing
    said = turn.said.rstrip()[-_SAID:]
    if there in stops or (there and said):
        return "the end of the turn is missing"
    text = before[-1][0] if before and not before[-1][1] else ""
    if not said or not text.rstrip().endswith(said):
        return None
    space = text[len(text.rstrip()) :]
    own = sampled[-1][0] if sampled and not sampled[-1][1] else ""
    return None if own.endswith(space) else "white space after the turn is missing"
