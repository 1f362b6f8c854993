"""Doubted shapes: short cuts of rendering that some worker found to give other ids than the rule (`rendering/doubts`).

One hash for the pool, which never expires: a doubt outlasts the worker that found it. Who finds a shape wrong says how
long ago its last equal comparison was, and so does each worker that hears of it and has used it. What is kept is the
earliest of these times: rollouts that ran between it and the doubt may have wrong ids.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import islice
from typing import NamedTuple

from rolloutpool_common.store import keys
from rolloutpool_common.store.connection import Connection
from rolloutpool_common.store.errors import store_errors

MOST_KEPT = 2_000
"""More than a process tells apart."""
MOST_SAID = 8


class DoubtedShape(NamedTuple):
    """A shape of deltas that goes by the rule in all processes."""

    name: str
    """Begins with the first digits of its template's hash."""
    since_ms: int
    """From when on its deltas may be wrong, by Redis' clock."""
    found_ms: int
    worker_id: str
    """Who found it."""


class DoubtedShapes:
    """The doubts of one store."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def add(self, worker_id: str, ages: Mapping[str, float]) -> None:
        """Notes what a worker doubts."""
        told = (part for name, age_s in ages.items() for part in (name, int(age_s * 1000)))
        await self._connection.script("doubt", worker_id, MOST_KEPT, *told)

    async def listed(self) -> list[DoubtedShape]:
        """Returns all of them, the latest first."""
        with store_errors():
            found = await self._connection.redis.hgetall(keys.DOUBTS)
        shapes = []
        for name, value in found.items():
            since, at, worker_id = value.decode().split(" ", 2)
            shapes.append(DoubtedShape(name.decode(), int(since), int(at), worker_id))
        return sorted(shapes, key=lambda shape: shape.found_ms, reverse=True)

    async def warnings(self) -> list[str]:
        """Says for each template, the latest first and `MOST_SAID` at most, which rollouts may have wrong ids."""
        templates: dict[str, list[DoubtedShape]] = {}
        for shape in await self.listed():
            templates.setdefault(shape.name.partition(".")[0], []).append(shape)
        return [
            f"delta_doubted: deltas of template {template} go by the rule (shapes: {len(shapes)}; found by "
            f"{shapes[0].worker_id}). Rollouts with it may have wrong ids that ran from "
            f"{_when(min(shape.since_ms for shape in shapes))} to {_when(shapes[0].found_ms)}"
            for template, shapes in islice(templates.items(), MOST_SAID)
        ]


def _when(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds")
