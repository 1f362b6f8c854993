"""A text that is put together from constants and words of messages, as a proof says that a template writes it.

The proof holds for words without the literals that the template looks for, that are not empty and have no white space
at their edges; all words must be such, because a template may compare what it does not print, such as a tool's name.
And the control strings of the text must be those of the constants. Else a word holds one, makes one with what stands
beside it, or makes one where it is written as JSON.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from rolloutpool_common.rendering.control_tokens import NONCE
from rolloutpool_common.rendering.proof import Proof


class Joint:
    """Puts texts of one shape together."""

    def __init__(self, proof: Proof, controls: re.Pattern[str]) -> None:
        """`controls` finds control strings. Nothing can be put together where the proof names no parts."""
        self.parts = proof.parts
        constants = [part for part in proof.parts or () if isinstance(part, str)]
        self._pattern = controls
        self._controls = [control for constant in constants for control in controls.findall(constant)]
        self._guard = re.compile("|".join(map(re.escape, (NONCE, *sorted(proof.guard)))))

    def join(self, messages: Sequence[Mapping[str, Any]]) -> tuple[str, str] | None:
        """The text, and the part of it before the first message's content; None for words that the proof excludes."""
        if self.parts is None:
            return None
        for message in messages:
            for key, word in message.items():
                # Templates can't look into a table without the proof's notice.
                if key == "role" or isinstance(word, dict):
                    continue
                if not word or word != word.strip() or self._guard.search(word):
                    return None
        pieces: list[str] = []
        start = None
        for part in self.parts:
            if isinstance(part, str):
                pieces.append(part)
                continue
            if start is None and part.key == "content":
                start = "".join(pieces)
            pieces.append(part.write(messages[part.message][part.key]))
        text = "".join(pieces)
        if self._pattern.findall(text) != self._controls:
            return None
        return text, text if start is None else start
