"""Says what is known about one tokenizer's added tokens; read once, when it is loaded.

A token is a *control token* if it was added to the vocabulary, is not only white space, and is either special or
written by the chat template: `<|im_start|>`, `<tool_call>`, `<think>` …
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tokenizers import AddedToken, Tokenizer

_MARK = "\uf8ff"
"""Put before a text that is encoded on trial, so that no tokenizer takes the text for the start of a string."""

_UNNORMALISED = " A\u00c5e\u0301\u2460 "
"""Every form of Unicode normalisation changes something in it."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The added tokens of a tokenizer, and how it treats text next to them."""

    size: int
    """One more than the largest id."""
    added: frozenset[str]
    """All added strings, control or not."""
    control_ids: dict[str, int]
    """Control string to id."""
    special: frozenset[str]
    """Control strings that the tokenizer calls special."""
    spelled: Mapping[str, list[int]]
    """Control string to the ids of its characters: what it becomes where somebody typed it."""
    anchor: str
    """What to put before a piece of text that does not start its string; empty where the tokenizer treats all pieces
    alike. SentencePiece models, for example, put a space before the first piece only, and then this is a control
    string. Some put one behind each control string, too, and then it is a letter."""
    anchor_ids: tuple[int, ...]
    """The ids of the anchor."""
    added_are_borders: bool
    """Whether text on one side of an added string never changes the ids of text on its other side, or its own."""

    @classmethod
    def read(cls, backend: Tokenizer, template_text: str) -> "Vocabulary":
        """Reads a tokenizer."""
        added = backend.get_added_tokens_decoder()
        control_ids = {
            token.content: token_id
            for token_id, token in added.items()
            if token.content.strip() and (token.special or token.content in template_text)
        }
        anchor = _anchor(backend, control_ids)
        letter = "" if anchor else _letter(backend)
        return cls(
            size=max(backend.get_vocab(with_added_tokens=True).values()) + 1,
            added=frozenset(token.content for token in added.values()),
            control_ids=control_ids,
            special=frozenset(t.content for t in added.values() if t.content in control_ids and t.special),
            spelled=_spelled(backend, control_ids, after_letter=bool(letter)),
            anchor=anchor or letter,
            anchor_ids=tuple(_encode(backend, anchor or letter)),
            added_are_borders=_are_borders(backend, list(added.values())),
        )


def _encode(backend: Tokenizer, text: str) -> list[int]:
    return list(backend.encode(text, add_special_tokens=False).ids)


def _anchor(backend: Tokenizer, control_ids: Mapping[str, int]) -> str:
    """Looks for a control string that stays one id and does not change the text after it."""
    for text, token_id in control_ids.items():
        ids = _encode(backend, text + "x x")
        # None is needed where text alone has the same ids as after a control string.
        if ids[:1] == [token_id] and _encode(backend, text + "\nx")[1:] == _encode(backend, "\nx"):
            return text if ids[1:] != _encode(backend, "x x") else ""
    return ""


def _letter(backend: Tokenizer) -> str:
    """Returns a letter that keeps its ids and changes the text behind it; nothing where it makes no difference."""
    alone = _encode(backend, _MARK)
    behind = _encode(backend, _MARK + "x x")
    return _MARK if behind[: len(alone)] == alone and behind[len(alone) :] != _encode(backend, "x x") else ""


def _are_borders(backend: Tokenizer, added: Sequence[AddedToken]) -> bool:
    # Some tokenizers put a space in front of a text, but none behind an added token.
    if added and _encode(backend, added[0].content + "x x")[1:] != _encode(backend, "x x"):
        return False
    normalizer = backend.normalizer
    rewrites = normalizer is not None and normalizer.normalize_str(_UNNORMALISED) != _UNNORMALISED
    # Such a token takes white space from the text next to it, or is found or not by what stands there.
    return not any(
        token.lstrip or token.rstrip or token.single_word or (token.normalized and rewrites) for token in added
    )


def _spelled(backend: Tokenizer, control_ids: Mapping[str, int], *, after_letter: bool) -> dict[str, list[int]]:
    """Encodes each control string with the same model, but without its added tokens."""
    plain = Tokenizer(backend.model)  # shares the model: no second vocabulary in memory
    if backend.normalizer is not None:
        plain.normalizer = backend.normalizer
    if backend.pre_tokenizer is not None:
        plain.pre_tokenizer = backend.pre_tokenizer
    if not after_letter:
        plain.add_special_tokens([AddedToken(_MARK, normalized=False)])
    before = len(_encode(plain, _MARK))
    control = frozenset(control_ids.values())
    table = {}
    for text in control_ids:
        ids = _encode(plain, _MARK + text)[before:]
        if control.intersection(ids):  # the model itself knows the whole string, so it is spelled by characters
            ids = [i for char in text for i in _encode(plain, _MARK + char)[before:]]
        table[text] = ids
    return table
