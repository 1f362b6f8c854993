"""Doubts: shapes of deltas whose short cut gave another delta than the rule. A doubt is for good.

1. A `Shape` counts its comparisons that were equal. The uses between two of them are a stretch.
2. A delta that a short cut made says of which shape and stretch it is (`Use`). The stretch's equal end vouches for it.
3. A comparison that differs doubts the shape. From then on it goes by the rule, and uses that nothing has vouched for
   may have wrong ids: `concern` tells.
4. The name of a shape is the same in all processes. `found` has what other processes are to hear, and `hear` takes what
   they have found. Whoever carries it between them is not this module's business.

The number of names is limited, because callers choose templates and their arguments: of a template with `MOST_OF_ONE`
doubted shapes all go by the rule, and with `MOST` of them all shapes of all templates do.
"""

import time
from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from hashlib import blake2b
from threading import Lock
from typing import NamedTuple

from cachetools import LRUCache

from rolloutpool_common.tokens.entries import TokenizerFingerprint

MOST = 1_000
MOST_OF_ONE = 32
SHAPES = 4_096
"""Shapes whose last equal comparison is remembered."""
TEMPLATE_DIGITS = 16
"""Of the template's hash, in front of the name of each of its shapes."""


@dataclass(slots=True, eq=False)
class Shape:
    """A shape that short cuts are used for in this process."""

    name: str
    equal_at: float
    """When its last equal comparison was, on the monotonic clock; before the first one, when it was first met."""
    stretch: int = 0
    """How many of its comparisons were equal."""


class Use(NamedTuple):
    """One use of a short cut."""

    shape: Shape
    stretch: int


class Doubts:
    """Holds what is doubted, as one process knows it. Thread-safe."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._names: set[str] = set()
        self._of_template: Counter[str] = Counter()
        self._shapes: LRUCache[str, Shape] = LRUCache(SHAPES)
        self.found: dict[str, float] = {}
        """Doubted shapes that this process has used: by name, since when no comparison here vouches for them."""

    def __contains__(self, name: str) -> bool:
        """Whether a shape goes by the rule."""
        # No lock, because each delta asks, and hardly any process has a doubt.
        if not self._names:
            return False
        whole = self._of_template[name[:TEMPLATE_DIGITS]] >= MOST_OF_ONE or len(self._names) >= MOST
        return whole or name in self._names

    def shape(self, name: str) -> Shape:
        """The shape of this name."""
        with self._lock:
            found = self._shapes.get(name)
            if found is None:
                found = self._shapes[name] = Shape(name, time.monotonic())
            return found

    def equal(self, shape: Shape) -> None:
        """Notes that a comparison was equal; it vouches for all uses before it, unless the shape is doubted by now."""
        with self._lock:
            if shape.name not in self:
                shape.stretch += 1
                shape.equal_at = time.monotonic()

    def doubt(self, shape: Shape) -> None:
        """Doubts a shape that a comparison here has found wrong."""
        with self._lock:
            self._add(shape.name)
            self.found.setdefault(shape.name, shape.equal_at)

    def hear(self, names: Iterable[str]) -> None:
        """Doubts shapes that any process has found wrong."""
        with self._lock:
            for name in set(names) - self._names:
                self._add(name)
                if (used := self._shapes.get(name)) is not None:
                    self.found[name] = used.equal_at

    def of_template(self, template_sha256: str) -> bool:
        """Whether any shape of a template is doubted."""
        return template_sha256[:TEMPLATE_DIGITS] in self._of_template

    def _add(self, name: str) -> None:
        if name not in self._names:
            self._names.add(name)
            self._of_template[name[:TEMPLATE_DIGITS]] += 1

    def concern(self, uses: Iterable[Use]) -> bool:
        """Whether one of these uses is of a doubted shape, and nothing has vouched for it."""
        return any(use.stretch == use.shape.stretch and use.shape.name in self for use in uses)


def name_of(fingerprint: TokenizerFingerprint, source: str, key: Hashable) -> str:
    """Names a shape: the first digits of its template's hash, and a hash of all that its deltas depend on."""
    whole = repr((fingerprint.tokenizer_sha256, fingerprint.transformers_version, source, key))
    shape = blake2b(whole.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return f"{fingerprint.template_sha256[:TEMPLATE_DIGITS]}.{shape}"
