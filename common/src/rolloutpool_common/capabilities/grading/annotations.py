"""Annotations of rollouts: added, never changed, read with the batch's rows.

1. A request becomes one record of scalars for the whole batch, and one of streams for each rollout that has some. The
   script `annotate.lua` appends all of them, or none where the batch's limit of bytes would be passed.
2. A reader folds the records: where a name comes again for a rollout, the later value wins.
3. They are deleted with their batch.
"""

from collections.abc import Mapping

import orjson

from rolloutpool_common.store import Store, keys
from rolloutpool_common.store.answers import named
from rolloutpool_common.store.errors import store_errors
from rolloutpool_common.store.records import compress, expand

Scalars = Mapping[str, Mapping[int, float]]
"""By name, then by the rollout's index."""
Streams = Mapping[str, list[list[float | None]]]
"""By name, a list for each sample."""


class Annotations:
    """The annotations in one store."""

    def __init__(self, store: Store) -> None:
        self._connection = store.connection
        self._redis = store.connection.redis

    async def append(
        self, batch_id: str, request_id: str, scalars: Scalars, streams: Mapping[int, Streams], *, max_bytes: int
    ) -> int | None:
        """Adds annotations, all or none."""
        columns = {name: [list(values), list(values.values())] for name, values in scalars.items()}
        records: list[int | bytes] = []
        for index, theirs in streams.items():
            records += [index, compress(orjson.dumps(theirs))]
        answer = named(
            await self._connection.script(
                *("annotate", batch_id, request_id, max_bytes),
                *(compress(orjson.dumps(columns)) if columns else b"", *records),
            )
        )
        return None if answer["outcome"] == b"full" else int(answer["bytes"])

    async def scalars(self, batch_id: str) -> dict[str, dict[int, float]]:
        """Reads the scalars of a batch: by name, then by index."""
        with store_errors():
            records = await self._redis.lrange(keys.batch(batch_id, "scalars"), 0, -1)
        folded: dict[str, dict[int, float]] = {}
        for record in records:
            for name, (indexes, values) in orjson.loads(expand(record)).items():
                folded.setdefault(name, {}).update(zip(indexes, values, strict=True))
        return folded

    async def streams(self, batch_id: str, index: int) -> dict[str, list[list[float | None]]]:
        """Reads the streams of one rollout, by name."""
        with store_errors():
            records = await self._redis.lrange(keys.rollout(keys.uid_of(batch_id, index), "streams"), 0, -1)
        folded: dict[str, list[list[float | None]]] = {}
        for record in records:
            folded.update(orjson.loads(expand(record)))
        return folded


async def scalars(store: Store, batch_id: str) -> Scalars:
    """Reads the scalars of a batch, for its table."""
    return await Annotations(store).scalars(batch_id)
