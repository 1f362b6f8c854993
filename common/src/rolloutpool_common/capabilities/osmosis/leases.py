"""Polling leases: rollouts that live as long as somebody asks for their results (the Osmosis wire).

1. The caller of a submit gets a random token; the batch's hash has its digest. Submit and lease are one script
   (`osmosis_on_commit`), so a caller that never gets the answer leaves a rollout that ends by itself.
2. Each look at the rollout with this token renews the lease (`look_polled.lua`).
3. When a lease is over is decided as for all leases (`store/leases.py`): by the served clock, so that holders who could
   not ask, because Redis or the API was down, lose no rollout. The reconciler then ends the rollout
   (`StoredOsmosis.tidy`). The end of a rollout, however it comes, ends its lease (`osmosis_on_end`).

The token is nowhere in Redis: who reads all of Redis can look at no rollout in its holder's name. Names of two owners
are apart, so nobody reaches a rollout of somebody else, by id or by prefix.
"""

import asyncio
import hashlib
import secrets
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import NamedTuple

from rolloutpool_common.capabilities.osmosis.stored import AT_ONCE, NewLease
from rolloutpool_common.outcomes import RolloutStatus
from rolloutpool_common.store import Store, keys
from rolloutpool_common.store.answers import named
from rolloutpool_common.store.errors import store_errors


class LeaseOutcome(StrEnum):
    """Says what a look at a lease finds."""

    OK = "ok"
    REFUSED = "refused"
    """The token is another rollout's, or nobody's."""
    UNKNOWN = "unknown"
    """There is no such rollout, or its name was forgotten after its end."""


class LeaseLook(NamedTuple):
    """Holds what a look at a lease has found; with `ok` alone there is more than the outcome."""

    outcome: LeaseOutcome
    batch_id: str = ""
    status: RolloutStatus = RolloutStatus.QUEUED
    told: RolloutStatus = RolloutStatus.QUEUED
    """What the look before has found. Where it is another status, the holder does not know of the change yet."""


def new_lease(lasts_s: float) -> tuple[str, NewLease]:
    """Makes a lease."""
    token = secrets.token_urlsafe(32)
    return token, NewLease(_digest(token), lasts_s)


class PollingLeases:
    """The polling leases in one store."""

    def __init__(self, store: Store) -> None:
        self._connection = store.connection
        self._redis = store.connection.redis
        self._rollouts = store.rollouts

    async def look(self, owner: str, idempotency_key: str, token: str) -> LeaseLook:
        """Looks at a rollout as the holder of its lease, and so renews the lease."""
        answer = named(
            await self._connection.script("look_polled", keys.idempotency(owner, idempotency_key), _digest(token))
        )
        outcome = LeaseOutcome(answer["outcome"].decode())
        if outcome is not LeaseOutcome.OK:
            return LeaseLook(outcome)
        status, told = (RolloutStatus(answer[name].decode()) for name in ("status", "told"))
        return LeaseLook(outcome, answer["batch"].decode(), status, told)

    async def status(self, batch_id: str) -> RolloutStatus:
        """Reads the status of a batch's only rollout; the lease stays as it is."""
        uid = keys.uid_of(batch_id, 0)
        status, stage = await self._connection.command("HMGET", keys.rollout(uid), "status", "stage")
        return RolloutStatus((stage or status or b"queued").decode())

    async def live(self, owner: str, names: Sequence[str] | None = None) -> dict[str, str]:
        """Finds an owner's rollouts that have a lease and have not ended."""
        with store_errors():
            if names is None:
                return {n.decode(): uid.decode() for n, uid in (await self._redis.hgetall(polled(owner))).items()}
            found = await self._redis.hmget(polled(owner), names) if names else []
        return {name: uid.decode() for name, uid in zip(names, found, strict=True) if uid is not None}

    async def active(self, owner: str) -> tuple[str, int]:
        """Counts an owner's rollouts that have a lease and have not ended."""
        with store_errors():
            pipe = self._redis.pipeline(transaction=False)
            pipe.hsetnx(keys.EPOCH, "data", secrets.token_hex(16))
            pipe.hget(keys.EPOCH, "data")
            pipe.hlen(polled(owner))
            _, name, count = await pipe.execute()
        return name.decode(), count

    async def cancel(self, uids: Iterable[str]) -> dict[str, RolloutStatus]:
        """Cancels rollouts."""
        uids, found = list(uids), list[RolloutStatus | None]()
        for start in range(0, len(uids), AT_ONCE):
            found += await asyncio.gather(*map(self._cancel, uids[start : start + AT_ONCE]))
        return {uid: status for uid, status in zip(uids, found, strict=True) if status is not None}

    async def _cancel(self, uid: str) -> RolloutStatus | None:
        """Cancels a rollout; returns where it stood, None where it had ended."""
        batch_id, _ = keys.split_uid(uid) or ("", 0)
        status = await self.status(batch_id)
        return status if await self._rollouts.cancel_at(batch_id, 0) == "ok" else None


def polled(owner: str) -> str:
    """Names the key of an owner's rollouts that have a polling lease and have not ended."""
    return f"{keys.PREFIX}polled:{owner}"


def _digest(token: str) -> str:
    # A header may hold what is no UTF-8; it is then nobody's token.
    return hashlib.sha256(token.encode(errors="surrogateescape")).hexdigest()
