"""What workers have learned of trainers: whether one keeps sampled ids or renders history again, and in which form.

A trainer has no name, so its endpoint stands for it, with the tokenizer and the template's arguments. Each rollout of
protocol v1 is a batch of its own, so without this every one of them would learn it anew, at the price of a refused
mask. A trainer can be exchanged for another one at the same address. So what is known expires, and a rollout that finds
it wrong corrects it.
"""

from rolloutpool_common.protocol.journal import TrainerKind
from rolloutpool_common.store import keys
from rolloutpool_common.store.connection import Connection
from rolloutpool_common.store.errors import store_errors

KEEP_SECONDS = 600
"""What nobody has confirmed for so long is forgotten."""


class KnownTrainers:
    """The kinds of trainers that one store knows."""

    def __init__(self, connection: Connection) -> None:
        self._redis = connection.redis

    async def kind(self, name: str) -> TrainerKind:
        """Returns what is known of a trainer; UNKNOWN where nothing is."""
        with store_errors():
            found: bytes | None = await self._redis.get(keys.trainer(name))
        # A later version may know more kinds.
        known = found.decode() if found else ""
        return TrainerKind(known) if known in set(TrainerKind) else TrainerKind.UNKNOWN

    async def learn(self, name: str, kind: TrainerKind) -> None:
        """Notes a trainer's kind for `KEEP_SECONDS`."""
        with store_errors():
            await self._redis.set(keys.trainer(name), kind.value, ex=KEEP_SECONDS)
