"""Text to ids and back, for one tokenizer. Immutable after construction, so threads may share it.

A token is *control* if it was added to the vocabulary, is not only white space, and is either special or written by
the chat template. Control strings are encoded as control ids only where the template wrote them. Typed ones become
the ids of their characters, from a table made once: the same model without its added tokens encodes each of them.
"""

from collections.abc import Iterable, Sequence

from tokenizers import AddedToken, Tokenizer

from rolloutpool_common.rendering.control_tokens import ControlTokenEscaper, split_marks
from rolloutpool_common.rendering.errors import ContentUnsafe

__all__ = ["Codec"]

_ANCHOR = "\uf8ff"  # stands in front of a piece, so that no tokenizer takes the piece for the start of a text

_LONG = 500
"""Characters; below that what can be saved is some microseconds, and a thread that waits for the GIL takes more."""

_NORMALISED = " A\u00c5e\u0301\u2460 "  # no form of normalisation leaves all of it alone


class Codec:
    """Encodes and decodes with one `tokenizers.Tokenizer`, which it takes over."""

    def __init__(self, backend: Tokenizer, template_text: str) -> None:
        """`template_text` is the source of all chat templates that will render for this codec."""
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        added = backend.get_added_tokens_decoder()
        control = {
            token.content: token_id
            for token_id, token in added.items()
            if token.content.strip() and (token.special or token.content in template_text)
        }
        self.added_strings = frozenset(token.content for token in added.values())
        """All added strings, control or not."""
        self.control_ids = control
        """Control string to id."""
        self.vocab_size = max(backend.get_vocab(with_added_tokens=True).values()) + 1
        """One more than the largest id."""
        self.guard = ControlTokenEscaper(
            control, (token.content for token in added.values() if token.content in control and token.special)
        )
        self._control = frozenset(control.values())
        self._pattern = self.guard.pattern
        self._anchor = self._find_anchor()
        self._plain = self._plain_table()
        normalizer = backend.normalizer
        rewrites = normalizer is not None and normalizer.normalize_str(_NORMALISED) != _NORMALISED
        self.added_are_borders = not self._anchor and not any(
            token.lstrip or token.rstrip or token.single_word or (token.normalized and rewrites)
            for token in added.values()
        )
        """Whether text on one side of an added string never changes the ids of text on its other side, or its own."""

    def encode(self, text: str, *, control: bool = True) -> list[int]:
        """Ids of the text, no special tokens added; with `control=False` none of them is a control id."""
        if control:
            return self._encode(text)
        return self.encode_rendered(self.guard.value(text))

    def encode_rendered(self, text: str, *, after: str = "") -> list[int]:
        """Ids of a rendered text whose untrusted control strings are marked, as they continue the text `after`.

        `after` is empty or one control string. Raises ContentUnsafe if there are more control ids than the template
        wrote control strings.
        """
        ids: list[int] = []
        meant = 0
        for index, (piece, control) in enumerate(split_marks(text)):
            if control:
                meant += sum(1 for _ in self._pattern.finditer(piece))
                ids += self._continue(piece, after if index == 0 else self._anchor)
            else:
                ids += self._encode_plain(piece)
        if sum(map(self._control.__contains__, ids)) > meant:
            raise ContentUnsafe("The tokenizer makes control tokens out of content that holds none.")
        return ids

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """Where each id of `encode_rendered(text)` lies in the text without its marks, as [start, end) in characters.

        Ids that share a character all have that character's place. Raises ContentUnsafe.
        """
        places: list[tuple[int, int]] = []
        base = 0
        for index, (piece, control) in enumerate(split_marks(text)):
            if control:
                anchor = self._anchor if index else ""
                found = self._backend.encode(anchor + piece, add_special_tokens=False).offsets
                shift = base - len(anchor)
                places += [(start + shift, end + shift) for start, end in (found[1:] if anchor else found)]
            else:
                places += [(base, base + len(piece))] * len(self._encode_plain(piece))
            base += len(piece)
        return places

    def token_id(self, piece: str) -> int | None:
        """The id of a piece of the vocabulary, spelled as the vocabulary spells it; None if there is none."""
        found = self._backend.token_to_id(piece)
        return None if found is None else int(found)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of the ids, special tokens included, nothing cleaned up; invalid UTF-8 becomes U+FFFD."""
        return str(self._backend.decode(list(ids), skip_special_tokens=False))

    def first_control(self, text: str) -> tuple[str, int] | None:
        """The first control string in the text and the offset behind it."""
        match = self._pattern.search(text)
        return (match.group(), match.end()) if match else None

    def count_control(self, pieces: Sequence[tuple[str, bool]]) -> int:
        """How many control strings the template wrote."""
        return sum(1 for piece, control in pieces if control for _ in self._pattern.finditer(piece))

    def _encode(self, text: str) -> list[int]:
        if len(text) < _LONG:
            return list(self._backend.encode(text, add_special_tokens=False).ids)
        # `encode` holds the GIL for all of its time, so that a thread for it would free no event loop: 128 kB held up
        # all others for 170 ms. A batch lets it go, and without offsets it takes half as long.
        return list(self._backend.encode_batch_fast([text], add_special_tokens=False)[0].ids)

    def _continue(self, piece: str, after: str) -> list[int]:
        if not after:
            return self._encode(piece)
        first, *rest = self._encode(after + piece)
        if first != self.control_ids[after]:
            raise ContentUnsafe(f"The tokenizer does not keep {after!r} apart from the text behind it.")
        return rest

    def _encode_plain(self, piece: str) -> list[int]:
        if piece in self._plain:
            return self._plain[piece]
        if self._pattern.search(piece) is None:
            return self._continue(piece, self._anchor)
        return self.encode_rendered(self.guard.value(piece))

    def _find_anchor(self) -> str:
        """A control string to put in front of later pieces; empty where the tokenizer treats all pieces alike."""
        for text, token_id in self.control_ids.items():
            ids = self._encode(text + "x x")
            if ids[:1] == [token_id] and self._encode(text + "\nx")[1:] == self._encode("\nx"):
                return text if ids[1:] != self._encode("x x") else ""
        return ""

    def _plain_table(self) -> dict[str, list[int]]:
        plain = Tokenizer(self._backend.model)  # shares the model: no second vocabulary in memory
        if self._backend.normalizer is not None:
            plain.normalizer = self._backend.normalizer
        if self._backend.pre_tokenizer is not None:
            plain.pre_tokenizer = self._backend.pre_tokenizer
        plain.add_special_tokens([AddedToken(_ANCHOR, normalized=False)])
        table = {}
        for text in self.control_ids:
            ids = plain.encode(_ANCHOR + text, add_special_tokens=False).ids[1:]
            if self._control.intersection(ids):  # a model that knows the whole string: spell it
                ids = [i for char in text for i in plain.encode(_ANCHOR + char, add_special_tokens=False).ids[1:]]
            table[text] = list(ids)
        return table
