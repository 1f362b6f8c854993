"""Text to ids and back, for one tokenizer. Immutable after construction, so threads may share it.

Control strings become control ids only where the template wrote them. A control string that somebody typed is marked
before it is rendered (`control_tokens.py`), and here it becomes the ids of its characters (`Vocabulary.spelled`).
"""

from collections.abc import Iterable, Sequence

from tokenizers import Tokenizer

from rolloutpool_common.rendering.control_tokens import ControlTokenEscaper, split_marks
from rolloutpool_common.rendering.errors import ContentUnsafe
from rolloutpool_common.rendering.vocabulary import Vocabulary

_LONG = 500
"""Characters. For a shorter text, letting go of the GIL costs more than the microseconds that it would free."""


class Codec:
    """Encodes and decodes with one `tokenizers.Tokenizer`, which it takes over."""

    def __init__(self, backend: Tokenizer, template_text: str) -> None:
        """Takes over a tokenizer; `template_text` is the source of all chat templates that render for this codec."""
        # A tokenizer.json may ask for both, and each would change the ids of a text without any sign.
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self.vocabulary = Vocabulary.read(backend, template_text)
        self.control_ids = self.vocabulary.control_ids
        """Control string to id."""
        self.escaper = ControlTokenEscaper(self.control_ids, self.vocabulary.special)
        """Marks typed control strings."""
        self.control_strings = {token_id: text for text, token_id in self.control_ids.items()}
        """Control id to string."""
        self.pattern = self.escaper.pattern
        """Matches the longest control string at a place."""
        self._control = frozenset(self.control_strings)

    def encode(self, text: str, *, control: bool = True) -> list[int]:
        """Encodes a text, without adding special tokens."""
        if control:
            return self._encode(text)
        return self.encode_rendered(self.escaper.value(text))

    def encode_rendered(self, text: str, *, after: str | None = None) -> list[int]:
        """Encodes a rendered text in which typed control strings are marked.

        It may continue the control string `after`, or other text if that is empty: then nothing is added that belongs
        to a beginning. None where it is one. Raises ContentUnsafe for control ids that the template did not write.
        """
        ids: list[int] = []
        meant = 0
        for index, (piece, control) in enumerate(split_marks(text)):
            # Only what the template wrote is encoded with control ids. Each piece after the first one continues text.
            if control:
                meant += len(self.pattern.findall(piece))
                if index or after == "":
                    ids += self._inside(piece)
                else:
                    ids += self._behind(piece, after) if after else self._encode(piece)
            else:
                ids += self._encode_plain(piece)
        # More of them than the template wrote: text that somebody typed has become one.
        if sum(map(self._control.__contains__, ids)) > meant:
            raise ContentUnsafe("The tokenizer makes control tokens out of content that holds none.")
        return ids

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """Finds where each id of `encode_rendered(text)` lies in the text."""
        places: list[tuple[int, int]] = []
        base = 0
        for index, (piece, control) in enumerate(split_marks(text)):
            if control:
                anchor = self.vocabulary.anchor if index else ""
                found = self._backend.encode(anchor + piece, add_special_tokens=False).offsets
                shift = base - len(anchor)
                first = len(self.vocabulary.anchor_ids) if anchor else 0
                places += [(start + shift, end + shift) for start, end in found[first:]]
            else:
                places += [(base, base + len(piece))] * len(self._encode_plain(piece))
            base += len(piece)
        return places

    def token_id(self, piece: str) -> int | None:
        """Returns the id of a piece, spelled as the vocabulary spells it; None if there is none."""
        found = self._backend.token_to_id(piece)
        return None if found is None else int(found)

    def decode(self, ids: Iterable[int]) -> str:
        """Returns the text of the ids, special tokens included, nothing cleaned up; invalid UTF-8 becomes U+FFFD."""
        return str(self._backend.decode(list(ids), skip_special_tokens=False))

    def decode_many(self, lists: Sequence[Sequence[int]]) -> list[str]:
        """Decodes each of the lists as `decode` does, in one call that lets go of the GIL."""
        return list(self._backend.decode_batch(lists, skip_special_tokens=False))

    def piece(self, token_id: int) -> str | None:
        """Returns an id's piece as the vocabulary spells it; None if the tokenizer has no such id."""
        found = self._backend.id_to_token(token_id)
        return None if found is None else str(found)

    def _encode(self, text: str) -> list[int]:
        if len(text) < _LONG:
            return list(self._backend.encode(text, add_special_tokens=False).ids)
        # `encode` holds the GIL while it runs, so even in a thread it would stop the event loop: 170 ms for 128 kB.
        # A batch lets go of the GIL, and without offsets it takes half as long.
        return list(self._backend.encode_batch_fast([text], add_special_tokens=False)[0].ids)

    def _behind(self, piece: str, control: str) -> list[int]:
        """Encodes a text that a control string stands before."""
        first, *rest = self._encode(control + piece)
        # Only where the control string stays an id of its own do the other ids belong to the text alone.
        if first != self.control_ids[control]:
            raise ContentUnsafe(f"The tokenizer does not keep {control!r} apart from the text after it.")
        return rest

    def _inside(self, piece: str) -> list[int]:
        """Encodes a text that continues other text."""
        anchor, first = self.vocabulary.anchor, list(self.vocabulary.anchor_ids)
        ids = self._encode(anchor + piece)
        if ids[: len(first)] != first:
            raise ContentUnsafe(f"The tokenizer does not keep {anchor!r} apart from the text after it.")
        return ids[len(first) :]

    def _encode_plain(self, piece: str) -> list[int]:
        """Encodes a piece that was typed: a control string, or the fragment of one at the edge of content."""
        spelled = self.vocabulary.spelled
        if piece in spelled:
            return spelled[piece]
        # The fragment at an edge may hold a whole control string, which the last line marks in its turn.
        if self.pattern.search(piece) is None:
            return self._inside(piece)
        return self.encode_rendered(self.escaper.value(piece))
