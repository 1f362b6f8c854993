"""Text to ids with the library `tokenizers` alone, for text that continues other text.

Some tokenizers put a space in front of a beginning (Metaspace, a Prepend normaliser, ByteLevel with its prefix). What
continues sampled ids is no beginning, so the first section of it is encoded with that taken out of the tokenizer's
file. Sections behind a control token get the tokenizer's own treatment, whatever that is.
"""

import json
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

from tests.oracle.spelling import PIECES, Spelling
from tests.tokenizers.libraries import whole, with_steps_of, without_added_tokens
from tokenizers import Tokenizer
from tokenizers.models import BPE


class Mixed(Exception):
    """Text that was typed becomes control ids, so that there is no right answer."""


class Encoder:
    """One tokenizer. `spelling` says which strings are control strings."""

    def __init__(self, directory: Path, template: str) -> None:
        """Reads `tokenizer.json`; the template's source decides which added tokens are control tokens."""
        every_added, self._whole, self._inner, self._bare = _tokenizers((directory / "tokenizer.json").resolve().parent)
        self._adds_space = self._inner is not self._whole
        added = [token for token in every_added if token["content"].strip()]
        self.controls = [t["content"] for t in added if t["special"] or t["content"] in template]
        """Strings that only the template and the policy may write as tokens."""
        self.spelling = Spelling(self.controls)
        self.control_ids = {t["content"]: int(t["id"]) for t in added if t["content"] in self.controls}
        self.size = int(self._whole.get_vocab_size())
        """Number of ids."""
        self._control_set = frozenset(self.control_ids.values())
        self._eats = {t["content"] for t in every_added if t["lstrip"]}
        every = sorted((t["content"] for t in every_added), key=len, reverse=True)
        self._added = re.compile("|".join(map(re.escape, every)) or r"(?!)")

    def beginning(self, spelled: str) -> list[int]:
        """Ids of a text that begins. Raises Mixed."""
        return self._pieces(spelled, lambda piece: self._raw(self._whole, piece))

    def behind(self, spelled: str, control: str) -> list[int]:
        """Ids of a text that follows a control token (empty: that follows other text). Raises Mixed."""
        if not control:
            return self._pieces(spelled, self._continued)

        def first(piece: str) -> list[int]:
            found = self._raw(self._whole, control + piece)
            if found[0] != self.control_ids[control]:
                raise Mixed(f"{control!r} is no token of its own in front of the text")
            return found[1:]

        return self._pieces(spelled, first)

    def plain(self, text: str) -> list[int]:
        """Ids of an unspelled text that begins, as any trainer gets them."""
        return self._raw(self._whole, text)

    def decode(self, ids: list[int]) -> str:
        """The text of ids."""
        return str(self._whole.decode(ids, skip_special_tokens=False))

    def written(self, spelled: str) -> int:
        """How many control strings a text holds that nobody typed."""
        return len(self.spelling.pattern.findall(spelled))

    def is_control(self, token: int) -> bool:
        """Whether an id is a control token."""
        return token in self._control_set

    def _pieces(self, spelled: str, first: Any) -> list[int]:
        ids: list[int] = []
        for i, piece in enumerate(PIECES.split(spelled)):
            if i % 2:
                found = self._raw(self._bare, self.spelling.meant(piece))
                # Where the model itself knows the whole string, it is spelled by its characters.
                if not self._control_set.isdisjoint(found):
                    found = [i for char in self.spelling.meant(piece) for i in self._raw(self._bare, char)]
                ids += found
            elif i == 0:
                ids += first(piece)
            elif piece:
                ids += self._continued(piece)
        return ids

    def _continued(self, piece: str) -> list[int]:
        if not self._adds_space:
            return self._raw(self._whole, piece)
        match = self._added.search(piece)
        if match is None:
            return self._raw(self._inner, piece)
        at = match.start()
        if match.group() in self._eats:
            at = len(piece[:at].rstrip())
        return self._raw(self._inner, piece[:at]) + self._raw(self._whole, piece[at:])

    @staticmethod
    def _raw(tokenizer: Tokenizer, text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False).ids) if text else []


@lru_cache(maxsize=2)
def _tokenizers(directory: Path) -> tuple[list[dict[str, Any]], Tokenizer, Tokenizer, Tokenizer]:
    """The added tokens, the tokenizer, the one for text that continues, and that one without added tokens."""
    read = whole(directory)
    added = [
        {"id": number, "content": token.content, "special": token.special, "lstrip": token.lstrip}
        for number, token in read.get_added_tokens_decoder().items()
    ]
    steps = json.loads(with_steps_of(read, Tokenizer(BPE())).to_str())
    joined = {name: _joined(steps[name]) for name in ("normalizer", "pre_tokenizer")}
    if all(steps[name] == step for name, step in joined.items()):
        return added, read, read, without_added_tokens(read)
    inner = Tokenizer.from_str(json.dumps({**json.loads(read.to_str()), **joined}))
    return added, read, inner, without_added_tokens(inner)


def _joined(step: Any) -> Any:
    """A step of a tokenizer's file without what it puts in front of a beginning."""
    if not isinstance(step, dict):
        return step
    kind = step.get("type")
    if kind == "Prepend":
        return None
    if kind == "Sequence":
        key = "normalizers" if "normalizers" in step else "pretokenizers"
        return {**step, key: [inner for inner in map(_joined, step[key]) if inner is not None]}
    if kind == "Metaspace":
        return {
            **step,
            "prepend_scheme": "never",
            **({"add_prefix_space": False} if "add_prefix_space" in step else {}),
        }
    if kind == "ByteLevel":
        return {**step, "add_prefix_space": False}
    return step
