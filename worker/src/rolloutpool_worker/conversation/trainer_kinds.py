"""Says what this process knows of its trainers, so that one rollout need not find out what another has learned.

1. A rollout begins with what is known of its endpoint, tokenizer and template: here, or else in Redis (one read, and
   not again for `ASK_AGAIN_SECONDS`).
2. At its end it notes what echoes have shown, and the process's beat writes that to Redis, where all workers find it.
   What a trainer says of itself is not noted, because it says it to each rollout.
3. It is a first guess. Where it is wrong, the trainer refuses one mask with 422; the other length is tried, and the
   echo corrects what is known.

A trainer that keeps ids and says nothing may never show it: its echo says something only where a turn rendered again
has another length. So its kind stays unknown, and each turn is counted for nothing. `Agreement` ends that: after so
many turns that agreed, most turns are not counted, and asked as if the trainer kept ids.
"""

from functools import lru_cache
from hashlib import blake2b

import orjson
from cachetools import TTLCache

from rolloutpool_common.protocol.journal import TrainerKind
from rolloutpool_common.protocol.options import RolloutSpec
from rolloutpool_common.store.trainers import KEEP_SECONDS, KnownTrainers

REMEMBERED = 4096
"""Trainers whose kind is remembered in a process."""
ASK_AGAIN_SECONDS = 5.0
"""Until Redis is asked again about a trainer of which nothing is known."""
ENOUGH_AGREED = 32
"""Counted turns in a row after which turns are left uncounted; and how many, the first time."""
MOST_UNCOUNTED = 1024
"""Turns between two that are counted, at most."""


class Agreement:
    """How long all turns of a trainer of unknown kind have agreed, so that most need not be counted.

    A turn agrees where both lengths of its mask are equal, and the trainer's echo is the ledger. After 32 such turns in
    a row the next 32 are not counted, then one is, then 64 are not, and so on up to 1,024. The first turn that does not
    agree, counted or not, ends that for all rollouts of this process at once.

    It decides only which mask is tried first, never whether one is accepted. A turn that was not counted may have
    another length at a trainer that renders again. If it checks masks, it refuses that one, and all lengths are counted
    (`TokenTrack.replan`). If it does not, its echo shows the difference, and the rollout ends as `mask_disproved`.
    """

    def __init__(self) -> None:
        self._agreed = 0
        self._uncounted = ENOUGH_AGREED
        self._left = 0

    def spares_count(self) -> bool:
        """Whether this turn need not be counted; called once for each turn."""
        if not self._left:
            return False
        self._left -= 1
        return True

    def agreed(self) -> None:
        """Notes a turn that was counted, and agreed."""
        self._agreed += 1
        # Many turns may have been planned before the first of them was answered. They are one reason, not many.
        if self._agreed >= ENOUGH_AGREED and not self._left:
            self._left = self._uncounted
            self._uncounted = min(2 * self._uncounted, MOST_UNCOUNTED)

    def differed(self) -> None:
        """Notes a turn that does not agree, counted or not: from now on each turn is counted again."""
        self._agreed, self._uncounted, self._left = 0, ENOUGH_AGREED, 0


class TrainerKinds:
    """Holds what this process has learned of its trainers, and what Redis knows."""

    def __init__(self, shared: KnownTrainers) -> None:
        self._shared = shared
        self._known: TTLCache[str, TrainerKind] = TTLCache(REMEMBERED, KEEP_SECONDS / 2)
        self._asked: TTLCache[str, None] = TTLCache(REMEMBERED, ASK_AGAIN_SECONDS)
        self._news: dict[str, TrainerKind] = {}
        self._agreements: TTLCache[str, Agreement] = TTLCache(REMEMBERED, KEEP_SECONDS / 2)

    def agreement(self, spec: RolloutSpec) -> Agreement:
        """Returns how far the turns of a rollout's trainer have agreed in this process; anew every five minutes."""
        # A trainer can be exchanged for another one at the same address.
        return self._agreements.setdefault(_name(spec), Agreement())

    async def of(self, spec: RolloutSpec) -> TrainerKind:
        """Returns the kind of the trainer that a rollout calls, as far as it is known."""
        name = _name(spec)
        known = self._known.get(name)
        if known is None and name not in self._asked:
            self._asked[name] = None
            known = await self._shared.kind(name)
            if known is not TrainerKind.UNKNOWN:
                # Another rollout may have learned something meanwhile, and that is newer.
                known = self._known.setdefault(name, known)
        return known or TrainerKind.UNKNOWN

    def learned(self, spec: RolloutSpec, kind: TrainerKind) -> None:
        """Remembers what a rollout knows of its trainer at its end; UNKNOWN overwrites nothing."""
        if kind is TrainerKind.UNKNOWN:
            return
        name = _name(spec)
        # This process forgets it before Redis does, so that a trainer in use is written again in time.
        if self._known.get(name) is not kind:
            self._known[name] = self._news[name] = kind

    async def share(self) -> None:
        """Writes to Redis what was learned since the last call."""
        for name, kind in list(self._news.items()):
            await self._shared.learn(name, kind)
            if self._news.get(name) is kind:
                del self._news[name]


def _name(spec: RolloutSpec) -> str:
    kwargs = spec.template_kwargs
    text = orjson.dumps(kwargs, option=orjson.OPT_SORT_KEYS) if kwargs else b"null"
    return _digest(spec.server_url, spec.tokenizer_name, spec.tokenizer_revision, text)


@lru_cache(REMEMBERED)
def _digest(*parts: str | bytes | None) -> str:
    return blake2b(repr(parts).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
