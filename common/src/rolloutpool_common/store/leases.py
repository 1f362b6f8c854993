"""Leases: what nobody asks for any more is ended.

A batch with `lease_seconds` is cancelled when its trainer has not read it for so long:

1. The batch has a place in `rp:leases` from its commit to its end: the time at which its lease is over. The time is of
   the served clock, which stands still while Redis or the API is away (`tick.lua`).
2. Each read by its owner puts that time off (`renew`), and so does each push that its webhook takes
   (`capabilities/webhooks`).
3. Once a second the reconciler lets the clock go on, and gets what is over. A batch's cancellation has begun in the
   same step, and is completed even if the reconciler ends there.
"""

from rolloutpool_common.store import keys
from rolloutpool_common.store.connection import Connection

AT_ONCE = 20
"""Leases that one tick ends. The others are as late as it takes to cancel these."""


class Leases:
    """The leases in one store."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def renew(self, batch_id: str) -> None:
        """Notes a read of a batch by its owner; does nothing where it has no lease or has ended."""
        await self._connection.script("renew_lease", batch_id)

    async def is_held_by(self, batch_id: str, reader: str) -> bool:
        """Tells whether a batch has a lease that this reader, its owner, holds."""
        lease, owner = await self._connection.command("HMGET", keys.batch(batch_id), "lease_ms", "owner")
        return lease is not None and bool(owner == reader.encode())

    async def tick(self, process: str, *, serving: bool) -> list[str]:
        """Lets the served clock go on; returns the batches whose lease is over, and whose cancellation has begun."""
        answer = await self._connection.script("tick", process, int(serving), AT_ONCE)
        return [batch_id.decode() for batch_id in answer]
