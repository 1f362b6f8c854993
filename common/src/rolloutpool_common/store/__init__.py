"""Everything that rolloutpool keeps, in one Redis. No other package names a Redis key.

`Store.open(url)` has one attribute per noun: `batches`, `batch_lists`, `rollouts`, `rows`, `histories`,
`leases`, `pieces`, `outbox`, `offers`, `workers`, `trials`, `preflights`,
`doubts`, `signals`, `totals`, `measures`, `usage` and `reconciliation`. Capabilities (`composition`) keep
what is theirs through its `connection`. Every change of state is one Lua script (`scripts/`), so that it happens whole
or not at all. Start with:

- `keys`: every key, its type and meaning.
- `rollouts`: how a claim (`claims`) and its fence keep a rollout with one worker.
- `outbox`: how rollouts get from their commit to the broker; `lanes`: those that only some workers can run.
- `liveness` and `verdicts`: how the death of a worker is noticed; `reconciliation`: what happens then.
- `usage`: what each owner holds, and who may submit where room is short.
- `trials`: how a rollout that may have killed its worker is found guilty or cleared.
- `scripts/epoch.lua`: what happens when Redis is started again.
"""

import asyncio
import time
from collections.abc import Callable

from rolloutpool_common.protocol.options import RolloutSpec
from rolloutpool_common.store import keys
from rolloutpool_common.store.batch_list import BatchLists
from rolloutpool_common.store.batch_tokenizers import BatchTokenizers
from rolloutpool_common.store.batches import Batches
from rolloutpool_common.store.claims import Claim, ClaimRefused
from rolloutpool_common.store.connection import Connection
from rolloutpool_common.store.doubts import DoubtedShapes
from rolloutpool_common.store.errors import (
    BatchDeleted,
    BatchStillRunning,
    ClaimLost,
    IdempotencyKeyReused,
    NoRoom,
    OverQuota,
    RefusalCause,
    StoreError,
    StoreFull,
    StoreMisaddressed,
    StoreUnavailable,
    StoreUntrusted,
    TooManyOpen,
    store_errors,
)
from rolloutpool_common.store.history import Histories
from rolloutpool_common.store.leases import Leases
from rolloutpool_common.store.liveness import Liveness
from rolloutpool_common.store.measures import PoolMeasures
from rolloutpool_common.store.model_calls import ModelCalls
from rolloutpool_common.store.offers import Offers
from rolloutpool_common.store.outbox import Outbox
from rolloutpool_common.store.pieces import Pieces
from rolloutpool_common.store.preflights import Preflights
from rolloutpool_common.store.reconciliation import Reconciliation, ReconciliationReport, Removal
from rolloutpool_common.store.records import (
    NewBatch,
    NewRollout,
    ResultSlice,
    SubmitLimits,
    Submitted,
    Ticket,
    merge_spec,
)
from rolloutpool_common.store.redis_address import check_addresses
from rolloutpool_common.store.redis_settings import find_warnings
from rolloutpool_common.store.rollouts import Rollouts, new_token
from rolloutpool_common.store.rows import Rows
from rolloutpool_common.store.schema import ForeignSchema
from rolloutpool_common.store.secrets import SecretsFileInvalid, SecretStore, SecretsUnkept
from rolloutpool_common.store.signals import Signals, Watch
from rolloutpool_common.store.totals import PoolStats, Totals
from rolloutpool_common.store.trainers import KnownTrainers
from rolloutpool_common.store.trials import Trials
from rolloutpool_common.store.usage import Usage
from rolloutpool_common.store.verdicts import STALLED_SECONDS
from rolloutpool_common.store.waits import Waits
from rolloutpool_common.store.workers import Workers

__all__ = [
    "SCHEMA_SECONDS",
    "BatchDeleted",
    "BatchStillRunning",
    "Claim",
    "ClaimLost",
    "ClaimRefused",
    "ForeignSchema",
    "IdempotencyKeyReused",
    "NewBatch",
    "NewRollout",
    "NoRoom",
    "OverQuota",
    "PoolStats",
    "Reconciliation",
    "ReconciliationReport",
    "RefusalCause",
    "ResultSlice",
    "SecretStore",
    "SecretsFileInvalid",
    "SecretsUnkept",
    "Store",
    "StoreError",
    "StoreFull",
    "StoreMisaddressed",
    "StoreUnavailable",
    "StoreUntrusted",
    "SubmitLimits",
    "Submitted",
    "Ticket",
    "TooManyOpen",
    "Watch",
    "check_addresses",
    "merge_spec",
    "new_token",
]


SCHEMA_SECONDS = 3.0
"""A Redis that takes longer for a connection counts as down for `check_schema`."""


class Store:
    """One Redis, seen from one process and one event loop."""

    def __init__(self, connection: Connection, secrets: SecretStore) -> None:
        self.connection = connection
        """For what a capability keeps here (`capability.py`)."""
        self.secrets = secrets
        self.rollouts = Rollouts(connection)
        self.batches = Batches(connection, self.rollouts, secrets)
        self.batch_lists = BatchLists(connection)
        self.batch_tokenizers = BatchTokenizers(connection)
        self.model_calls = ModelCalls(connection, self.rollouts)
        self.rows = Rows(connection)
        self.histories = Histories(connection)
        self.leases = Leases(connection)
        self.pieces = Pieces(connection)
        self.offers = Offers(connection)
        self.outbox = Outbox(connection)
        self.workers = Workers(connection)
        self.trials = Trials(connection)
        self.preflights = Preflights(connection)
        self.trainers = KnownTrainers(connection)
        self.doubts = DoubtedShapes(connection)
        self.waits = Waits(connection)
        self.signals = Signals(connection)
        self.totals = Totals(connection)
        self.measures = PoolMeasures(connection)
        self.usage = Usage(connection)
        self.reconciliation = Reconciliation(connection, self.workers, self.rollouts, self.batches)

    @classmethod
    def open(cls, url: str, *, max_connections: int = 32, secrets: SecretStore | None = None) -> "Store":
        """Makes a store, which connects at first use."""
        return cls(Connection(url, max_connections=max_connections), secrets or SecretStore.none())

    def watch(
        self, *, stalled_s: float = STALLED_SECONDS, on_removed: Callable[[Removal], None] | None = None
    ) -> Liveness:
        """Makes the watch over the workers, for the process that reconciles; it closes the watch."""
        return Liveness(self.connection, self.reconciliation, stalled_s=stalled_s, on_removed=on_removed)

    def with_secrets(self, spec: RolloutSpec) -> RolloutSpec:
        """Returns the spec with its secrets in plain text, for memory only; raises `SecretUnreadable`."""
        if not spec.callback_api_key:
            return spec
        return spec.model_copy(update={"callback_api_key": self.secrets.decrypt(spec.callback_api_key)})

    async def ping(self) -> float:
        """Milliseconds for one round trip; raises `StoreUnavailable`."""
        with store_errors():
            start = time.perf_counter()
            await self.connection.redis.ping()
            return (time.perf_counter() - start) * 1000

    async def why_no_writes(self) -> str:
        """Says why a Redis that answers takes no writes; nothing where it takes them."""
        try:
            with store_errors():
                # It changes nothing, and is refused like all that might: by a replica, on a full disk.
                await self.connection.redis.unlink(keys.NOTHING)
        except StoreUnavailable as error:
            return error.message
        return ""

    async def warnings(self) -> list[str]:
        """Says which settings of Redis put accepted work at risk; raises `StoreUnavailable`."""
        return await find_warnings(self.connection.redis)

    async def check_schema(self) -> None:
        """Opens a connection if Redis answers within `SCHEMA_SECONDS`.

        Each later connection checks it again, so a process may go on without an answer.
        """
        try:
            async with asyncio.timeout(SCHEMA_SECONDS):
                await self.ping()
        except (StoreUnavailable, TimeoutError) as error:
            if isinstance(error, StoreUntrusted):
                raise

    async def close(self) -> None:
        """Closes all connections."""
        await self.signals.stop()
        await self.connection.close()
