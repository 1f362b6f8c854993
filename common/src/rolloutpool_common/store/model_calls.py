"""Model calls: whether one was sent under a claim, noted before the first one.

What a dead worker's claim means for the turn that it was at:

1. The claim is stored as `uncalled`, with the epoch of Redis (`claim.lua`). Until its first call, the worker may load a
   tokenizer, reads the journal, renders the prompt.
2. Before the attempt's first call `uncalled` is emptied, and the call is sent only once Redis has that (`calling.lua`).
   It is one small script per attempt, which travels together with the calls of other rollouts (`scripting.py`).
3. The claim itself makes the note where nothing but the request stands between the two, and the turn may be asked twice
   (`claim.lua`): the tokenizer is loaded, no run, environment, recorded turn or engine, no open breaker, a first
   attempt, and a trainer that has promised this in this batch. Elsewhere a death between claim and call would be a
   doubt for nothing.
4. If the worker dies and the claim is still `uncalled`, nobody was asked: the next attempt asks that turn without
   doubt. If not, the trainer may have sampled the turn, and it is ambiguous (`release.lua`).
5. A rollout that waits for its run to be resumed takes the note back, and makes it anew before it calls (`take_back`).
   Else each death during a pause would leave a turn in doubt that nobody was asked for.
6. A turn that is ambiguous may be asked again where its trainer has promised that this is safe. Such a promise is noted
   with the batch (`note_idempotent`), by the trainer's URL. Which trainers have to promise, because options of their
   rollouts don't, the submit has noted (`promisers`), for whoever has no worker to ask.
7. A Redis that crashed may have lost the note. So an `uncalled` of an earlier epoch is not believed.
"""

import time
from collections.abc import Mapping
from typing import Any

import orjson

from rolloutpool_common.protocol.endpoint import EndpointProtocol
from rolloutpool_common.store import keys
from rolloutpool_common.store.claims import Claim
from rolloutpool_common.store.connection import Connection
from rolloutpool_common.store.errors import ClaimLost, store_errors
from rolloutpool_common.store.records import NewBatch
from rolloutpool_common.store.rollouts import Rollouts

MOST_PROMISERS = 64
"""With more trainers that have to promise, none of a batch's turns counts as one that may be asked again."""


def promisers(new: NewBatch) -> list[str]:
    """Names the trainers that have to promise before any turn of a batch may be asked again, for the batch's hash."""
    shared = orjson.loads(new.shared)
    words = (b'"idempotent"', b'"protocol"', *(() if _may_repeat(shared) else (b'"server_url"',)))
    needed: set[str] = set()
    for rollout in new.rollouts:
        # Most rollouts have none of these words, and need not be parsed.
        own = orjson.loads(rollout.overrides) if any(word in rollout.overrides for word in words) else {}
        if not _may_repeat(fields := {**shared, **own}):
            needed.add(fields["server_url"])
    return [] if len(needed) > MOST_PROMISERS else ["promisers", " ".join(sorted(needed))]


def _may_repeat(fields: Mapping[str, Any]) -> bool:
    """Says of a rollout's fields what `RolloutSpec.may_repeat` says of its spec."""
    return (
        bool(fields.get("idempotent")) or fields.get("protocol", EndpointProtocol.CALLBACK) != EndpointProtocol.CALLBACK
    )


class ModelCalls:
    """Notes about the model calls of claimed rollouts."""

    def __init__(self, connection: Connection, rollouts: Rollouts) -> None:
        self._connection = connection
        self._rollouts = rollouts

    async def note(self, claim: Claim) -> None:
        """Makes it durable that a model call is about to be sent under this claim; raises `ClaimLost`."""
        idle, waits = self._connection.idle, claim.waits
        before, call = idle.seconds, self._connection.script("calling", claim.uid, claim.token)
        noted = await call
        # As of a record (`Rollouts.journal`).
        took = time.perf_counter() - call.begun
        redis = took if call.tries else min(idle.seconds - before, took)
        waits.redis += redis
        waits.worker += took - redis
        # A claim that Redis forgot is made again, and then counts as one that has called.
        if not noted and not await self._rollouts.restore(claim, None, turns=0):
            raise ClaimLost(f"rollout {claim.uid}, attempt {claim.attempt}: {ClaimLost.__doc__}")

    async def take_back(self, claim: Claim, *, certain: bool) -> None:
        """Notes that no model call is in flight under this claim, after one was noted."""
        await self._connection.script("calling", claim.uid, claim.token, int(certain))

    async def note_idempotent(self, claim: Claim) -> None:
        """Notes with its batch that this rollout's trainer answers a repeated request with the reply of then."""
        with store_errors():
            key = keys.batch(claim.batch_id, "idempotent")
            await self._connection.beside_batch(claim.batch_id, "SADD", key, claim.spec.server_url)

    async def is_idempotent(self, claim: Claim) -> bool:
        """Whether that was noted of this rollout's trainer."""
        with store_errors():
            found = await self._connection.redis.sismember(
                keys.batch(claim.batch_id, "idempotent"), claim.spec.server_url
            )
        return bool(found)
