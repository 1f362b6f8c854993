"""A sample's tokens for a terminal: what was trained (mask 1) stands in ⟦brackets⟧, underlined and green.

Runs of equal mask are decoded as a whole, because one character may take several tokens. What a model wrote is
text and stays text: it cannot move the cursor, set colours, or draw brackets of its own.
"""

import unicodedata
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

from rich.text import Text

from rolloutpool_common.protocol.result import Sample

__all__ = ["Decode", "legend", "mask_runs", "printable", "token_view"]

Decode = Callable[[Sequence[int]], str]

TRAINED = "bold green underline"
UNTRAINED = "dim"
PROMPT = "dim italic"
OPEN, CLOSE = "⟦", "⟧"

# Control characters, and format characters such as those that reverse the direction of writing.
_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_KEPT = frozenset("\n\u200c\u200d")
"""Newline, and the joiners that words of some languages and emoji need."""


def printable(text: str) -> str:
    """The text with everything that a terminal could obey written out as an escape, newlines excepted."""
    return "".join(
        character
        if character in _KEPT or unicodedata.category(character) not in _UNSAFE
        else character.encode("unicode_escape").decode()
        for character in text
    )


def mask_runs(ids: Sequence[int], mask: Sequence[int]) -> Iterator[tuple[int, list[int]]]:
    """Runs of tokens of equal mask, as (mask, ids)."""
    for value, group in groupby(zip(ids, mask, strict=True), key=lambda pair: pair[1]):
        yield value, [token for token, _ in group]


def token_view(sample: Sample, decode: Decode | None, *, prompt_tail: int | None = None) -> Text:
    """The sample as styled text.

    Args:
        sample: What to show.
        decode: Turns ids into text; None shows the ids as numbers.
        prompt_tail: How many tokens of the prompt's end to show; None shows all.
    """
    view = Text()
    prompt = sample.prompt_ids
    if prompt_tail is not None and len(prompt) > prompt_tail:
        view.append(f"(… {len(prompt) - prompt_tail:,} tokens of the prompt) ", style=PROMPT)
        prompt = prompt[-prompt_tail:] if prompt_tail else []
    if prompt:
        view.append(_shown(prompt, decode), style=PROMPT)
    for mask, ids in mask_runs(sample.response_ids, sample.response_mask):
        if mask:
            view.append(OPEN, style="green").append(_shown(ids, decode), style=TRAINED).append(CLOSE, style="green")
        else:
            view.append(_shown(ids, decode), style=UNTRAINED)
    return view


def legend(sample: Sample) -> Text:
    """What the styles mean, with counts."""
    trained = sum(sample.response_mask)
    total = len(sample.prompt_ids) + len(sample.response_ids)
    return Text.assemble(
        (OPEN, "green"),
        ("mask 1", TRAINED),
        (CLOSE, "green"),
        ": sampled by the policy, trained   ",
        ("mask 0", UNTRAINED),
        ": put there by template and tools   ",
        ("prompt", PROMPT),
        f"   trained {trained:,} of {total:,} tokens",
    )


def _shown(ids: Sequence[int], decode: Decode | None) -> str:
    if decode is None:
        return " ".join(map(str, ids)) + " "
    text = printable(decode(ids)).replace(OPEN, "\\u27e6").replace(CLOSE, "\\u27e7")
    return text.replace("\n", "↵\n")
