"""The ways in which a policy ends a turn, made of what the template writes there.

Each says what the policy sampled of the turn's end and what is left to be written, so that nothing has to be searched
for in sampled ids:

- `stopped`: all up to the stop. `bare stop`: the stop alone, where the template writes something in front of it.
- `spaced`: also the white space that the template writes behind the stop.
- `cut`: an answer that was cut by length, or whose stop was withheld: nothing. `withheld`: all in front of the stop.
- `own spelling`: calls with other white space than the template's in front of the stop.
- `foreign`: another stop token, which stands in the place of the template's.
- `complete`: calls of a family without a stop. `header`: such a family stops at the next header.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.oracle.referee import Appended


@dataclass(frozen=True)
class Ending:
    """One way to end a turn."""

    kind: str
    sampled: str
    """Behind the policy's own words."""
    rest: str
    """What is left to write, with typed control strings in other letters."""


def endings(found: Appended, foreign: Sequence[str], controls: re.Pattern[str], *, by_hand: bool) -> Iterator[Ending]:
    """All endings of a turn.

    Args:
        found: What the template writes behind the turn.
        foreign: Further stop tokens of the model.
        controls: Finds control strings.
        by_hand: Whether the end is known by hand, so that what follows it is a header.
    """
    text, end = found.text, found.end
    if not found.calls:
        yield Ending("cut", "", text)
    if end is None:
        return
    own, stop, rest = text[: end.start], text[end.start : end.over], text[end.over :]
    if not stop:
        if found.calls:
            yield Ending("complete", own, rest)
        at = len(rest) - len(rest.lstrip())
        header = controls.match(rest, at)
        if by_hand and header:
            yield Ending("header", (own if found.calls else "") + rest[: header.end()], rest[header.end() :])
    else:
        yield Ending("stopped", own + stop, rest)
        if found.space and rest.startswith(found.space):
            yield Ending("spaced", own + stop + found.space, rest[len(found.space) :])
        if own and not found.calls:
            yield Ending("bare stop", stop, rest)
        if found.calls:
            yield Ending("withheld", own, stop + rest)
            if own != (spelled := "".join(own.split())):
                yield Ending("own spelling", spelled + stop, rest)
    for token in foreign if found.replaced else ():
        if token not in own + stop and not rest.lstrip().startswith(token):
            yield Ending("foreign", (own if found.calls else "") + token, rest)
