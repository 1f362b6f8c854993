"""The names of drift: how the prompt that a trainer reports for a turn differs from the pool's ledger.

Each turn of a result carries one label. A label is a heuristic for people and metrics: a wrong one never changes a
mask. The labels are kept apart from the code that finds them (`rendering/drift.py`), because a viewer needs no
tokenizer.

A label is an opinion; the proof is `PromptDifference`: where the two prompts part, with the ids around it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

IDS_BEFORE = 8
"""Ids in front of a difference that are kept with it."""
IDS_FROM = 24
"""Ids from a difference on that are kept of each prompt."""


class DriftLabel(StrEnum):
    """Says what a turn's `drift` says."""

    NONE = "none"
    """The prompts are the same."""
    UNVERIFIED = "unverified"
    """The trainer reported no prompt, so there was nothing to compare."""
    EDITED = "edited"
    """The agent edited the history, and the trainer's prompt is what was expected of it."""
    INJECTED_CONTROL_TOKEN = "injected_control_token"
    """After the last sampled id, same text: the trainer made control ids of control strings that were typed."""
    GLUE_REWRITTEN = "glue_rewritten"
    """Text of the environment or the template differs."""
    PROMPT_REWRITTEN = "prompt_rewritten"
    """The first prompt differs: its tools, date or system message, or a history that was moved or cut."""
    REPLACEMENT_CHAR = "replacement_char"
    """A turn ends in the middle of a character, which its text cannot hold."""
    CLOSE_TOKEN_CHANGED = "close_token_changed"
    """The turn ends with another stop token."""
    RETOKENIZED_SAME_TEXT = "retokenized_same_text"
    """The text is the same, but it is split into other ids."""
    UNICODE_NORMALISED = "unicode_normalised"
    """The text is the same after Unicode normalisation (NFC)."""
    THINKING_STRIPPED = "thinking_stripped"
    """The text after the thinking is the same."""
    TOOL_CALL_RESERIALISED = "tool_call_reserialised"
    """A tool call was parsed and written again; what stands beside it is the same, or gone with it."""
    WHITESPACE_TRIMMED = "whitespace_trimmed"
    """The text is the same except for white space."""
    HISTORY_SHORTENED = "history_shortened"
    """The prompt ends before what was sampled."""
    ASSISTANT_TEXT_CHANGED = "assistant_text_changed"
    """What was sampled has another text."""


NO_DRIFT = frozenset({DriftLabel.NONE, DriftLabel.UNVERIFIED, DriftLabel.EDITED})
"""Labels of turns in which nothing drifted. A label of a result is a plain `str`; it is found here all the same."""


@dataclass(frozen=True, slots=True)
class PromptDifference:
    """Says where the trainer's prompt first differs from the ledger. Decoded, the ids show what the trainer rewrote."""

    position: int
    """Of the first id that differs, from the start of the turn's prompt."""
    before: list[int]
    """The ids in front of it, at most 8; both prompts have them."""
    expected: list[int]
    """What the ledger has from it on, at most 24 ids; empty where the ledger ends there."""
    echoed: list[int]
    """What the trainer's prompt has from it on, likewise."""

    @classmethod
    def at(cls, position: int, expected: Sequence[int], echoed: Sequence[int], *, prefix: int = 0) -> Self:
        """Cuts the ids around a difference out of the two prompts."""
        return cls(
            position=position,
            before=list(expected[max(position - IDS_BEFORE, 0) : position]),
            expected=list(expected[position : position + IDS_FROM]),
            echoed=list(echoed[position - prefix : position - prefix + IDS_FROM]),
        )
