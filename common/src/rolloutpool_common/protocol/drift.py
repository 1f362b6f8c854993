"""The names of drift: how the prompt that a trainer reports for a turn differs from the pool's ledger.

Each turn of a result carries one label. A label is a heuristic for people and metrics: a wrong one never changes a
mask. The labels are kept apart from the code that finds them (`rendering/drift.py`), because a viewer needs no
tokenizer.
"""

from enum import StrEnum

__all__ = ["NO_DRIFT", "DriftLabel"]


class DriftLabel(StrEnum):
    """What a turn's `drift` says."""

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
    """A tool call was parsed and written again."""
    WHITESPACE_TRIMMED = "whitespace_trimmed"
    """The text is the same except for white space."""
    HISTORY_SHORTENED = "history_shortened"
    """The prompt ends before what was sampled."""
    ASSISTANT_TEXT_CHANGED = "assistant_text_changed"
    """What was sampled has another text."""


NO_DRIFT = frozenset({DriftLabel.NONE, DriftLabel.UNVERIFIED, DriftLabel.EDITED})
"""Labels of turns in which nothing drifted. A label of a result is a plain `str`; it is found here all the same."""
