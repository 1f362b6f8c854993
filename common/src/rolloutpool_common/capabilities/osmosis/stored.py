"""Says what polled rollouts keep in Redis, and what the store does for them. The leases themselves are in `leases`.

rp:leases:polled           zset    batch of one -> ms of the served clock at which its polling lease is over
rp:polled:{owner}          hash    the caller's name -> uid, of rollouts that have such a lease and have not ended

Fields of a batch's hash: `polling_lease` (sha256 of the token), `polling_ms` (for how long a poll holds), `polled_name`
(its rollout's name), `told` (the status that the last poll has found), `forsaken` (its lease was found over).
"""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass

from rolloutpool_common.capability import Encryption, Ends, StoredCapability, StoreDoor
from rolloutpool_common.errors import LeaseExpired

_log = logging.getLogger(__name__)

KEPT_MS = 900_000
"""For so long after its rollout's end a caller's name is not free."""
AT_ONCE = 64
"""Rollouts that are ended at the same time; more would hold up the other calls of this process."""
MOST = 1000
"""Rollouts that one round ends."""


@dataclass(frozen=True)
class NewLease:
    """The lease under which a rollout is submitted."""

    digest: str
    """sha256 of its token, in hex; the token itself is nowhere but with its holder."""
    lasts_s: float
    """Seconds from the submit, and from each look at the result."""


class StoredOsmosis(StoredCapability):
    """Polled rollouts, as the store sees them: each is a batch of one, whose plan asks for its lease."""

    name = "osmosis"
    mark = "polling_lease"

    def kept(self, asked: NewLease, secrets: Encryption) -> Mapping[str, str | int]:
        """The lease, and how long its name is kept."""
        return {self.mark: asked.digest, "polling_ms": int(asked.lasts_s * 1000), "key_ms": KEPT_MS}

    async def tidy(self, door: StoreDoor, ends: Ends) -> int:
        """Ends rollouts that nobody polls any more; returns how many."""
        batches = [batch.decode() for batch in await door.script("unpolled", MOST)]
        failure, ended = LeaseExpired().failure(), 0
        for start in range(0, len(batches), AT_ONCE):
            some = [ends.fail(batch_id, 0, failure) for batch_id in batches[start : start + AT_ONCE]]
            ended += sum(await asyncio.gather(*some))
        if ended:
            _log.warning("%d rollouts are ended: nobody polls for them any more", ended)
        return ended
