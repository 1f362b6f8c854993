"""Staging: how the rollouts of a new batch reach Redis before the commit that makes them a batch.

1. Many or large rollouts are staged in chunks, in keys of their own. What is staged is not visible, and expires by
   itself. The commit renames these keys (`commit.lua`), unless Redis was started again and has lost some of them.
2. A few small ones go with the commit itself. A `POST /rollout` is a batch of one, and to stage it would be one more
   round trip, with keys that are written only to be renamed.

A part is a hash with one field per rollout, named by its index: `items`, `names`, `groups`, `deadlines`, `needs`. The
part `group_counts` has a field per group, and `trunk` has one for the whole batch.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from rolloutpool_common.composition import CAPABILITIES
from rolloutpool_common.store import keys
from rolloutpool_common.store.errors import store_errors
from rolloutpool_common.store.records import NewBatch, compress
from rolloutpool_common.store.secrets import SecretStore

CHUNK = 500
"""Rollouts per round trip."""
STAGE_SECONDS = 3600
"""What was staged and never committed expires after this time."""
BESIDE_BATCH = 2000
"""Bytes that Redis takes for a batch beside its texts, and the next for a rollout: hashes, and entries in lists."""
BESIDE_ROLLOUT = 300
DIRECT_ROLLOUTS = 8
DIRECT_BYTES = 64 * 1024
"""A batch within both goes with its commit. Commits travel together, so what each brings must be small."""


async def stage(
    redis: Any, secrets: SecretStore, new: NewBatch, encrypted: dict[str, str], needs: Mapping[int, str] | None = None
) -> list[Any]:
    """Stages the rollouts of a batch, or says what the commit brings of them."""
    needs = needs or {}
    small = new.trunk is None and len(new.rollouts) <= DIRECT_ROLLOUTS
    if small and sum(len(r.overrides) for r in new.rollouts) <= DIRECT_BYTES:
        parts = _parts(secrets, new, 0, encrypted, needs)
        return [one for part, values in parts.items() for item in values.items() for one in (part, *item)]
    with store_errors():
        if new.trunk is not None:
            pipe = redis.pipeline(transaction=False)
            pipe.hset(keys.staged(new.batch_id, "trunk"), "0", compress(new.trunk))
            pipe.expire(keys.staged(new.batch_id, "trunk"), STAGE_SECONDS)
            await pipe.execute()
        for start in range(0, len(new.rollouts), CHUNK):
            # No transaction is needed: readers see nothing of the batch before its commit.
            pipe = redis.pipeline(transaction=False)
            for part, values in _parts(secrets, new, start, encrypted, needs).items():
                if values:
                    pipe.hset(keys.staged(new.batch_id, part), mapping=values)
                    pipe.expire(keys.staged(new.batch_id, part), STAGE_SECONDS)
            await pipe.execute()
    return []


def size_of(new: NewBatch) -> int:
    """Adds up about how many bytes a batch takes in Redis as it comes, before any of it runs."""
    own = sum(len(rollout.overrides) for rollout in new.rollouts)
    return BESIDE_BATCH + len(new.shared) + len(new.trunk or b"") + own + BESIDE_ROLLOUT * len(new.rollouts)


def _parts(
    secrets: SecretStore, new: NewBatch, start: int, encrypted: dict[str, str], needs: Mapping[int, str]
) -> dict[str, dict[Any, Any]]:
    """Makes the parts of the `CHUNK` rollouts from `start` on."""
    chunk = list(enumerate(new.rollouts[start : start + CHUNK], start))
    # The sizes of the groups are of the whole batch, so they go with the first chunk only.
    sized = any(one.sizes_groups for one in CAPABILITIES if one.name in new.asks)
    counted = (new.group_policy is not None or sized) and not start
    groups = Counter(r.group for r in new.rollouts if r.group is not None) if counted else {}
    return {
        "names": {i: r.rollout_id for i, r in chunk if r.rollout_id is not None},
        "groups": {i: r.group for i, r in chunk if r.group is not None},
        "group_counts": {f"size:{group}": size for group, size in groups.items()},
        # Durations in ms; the commit makes points in time of them. So staging costs no rollout any time.
        "deadlines": {i: int(r.deadline_s * 1000) for i, r in chunk if r.deadline_s is not None},
        "needs": {i: needs[i] for i, _ in chunk if i in needs},
        # Last: where Redis has all of these, it has lost nothing of the rest (`commit.lua`).
        "items": {i: secrets.encrypt_field(r.overrides, encrypted) for i, r in chunk},
    }
