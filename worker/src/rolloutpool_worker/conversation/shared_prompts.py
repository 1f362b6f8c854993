"""First prompts as the rollouts of one process share them.

A group's rollouts have the same first prompt, and so have many sessions of a program with long instructions. Rendering
80 kB takes as much CPU as ten turns, so it is done once. A prompt is known by all that it is rendered from.
"""

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

import orjson
from cachetools import LRUCache

from rolloutpool_common.rendering import ChatTokenizer

KEPT_IDS = 500_000
"""In all, some 20 MB."""
LONGEST_KEPT = 100_000
Key = tuple[object, ...]


class SharedPrompts:
    """The ids of the first prompts that were used last."""

    def __init__(self) -> None:
        self._kept: LRUCache[Key, list[int]] = LRUCache(KEPT_IDS, lambda ids: len(ids) + 100)

    @staticmethod
    def key(
        tokenizer: ChatTokenizer,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[dict[str, Any]] | None,
        template_kwargs: Mapping[str, Any] | None,
    ) -> Key | None:
        """Names a prompt; None where its render may be another one the next time."""
        if tokenizer.reads_clock:
            return None
        try:
            # As they stand: templates print the members of an object in their order.
            said = orjson.dumps([list(messages), tools, template_kwargs])
        except orjson.JSONEncodeError:
            return None
        return tokenizer.name, tokenizer.revision, tokenizer.fingerprint, blake2b(said, digest_size=16).digest()

    def find(self, key: Key | None) -> list[int] | None:
        """Returns the ids of a prompt, which are not to be changed; None where it is not kept."""
        return None if key is None else self._kept.get(key)

    def keep(self, key: Key | None, ids: list[int]) -> None:
        """Keeps a prompt for the next rollouts, unless it is too long."""
        if key is not None and len(ids) <= LONGEST_KEPT:
            self._kept[key] = ids


SHARED_PROMPTS = SharedPrompts()
"""Those of this process."""
