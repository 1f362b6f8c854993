"""What the rollouts of a batch wait for, by endpoint, as fields of the batch: readers of the batch get it for nothing.

1. A worker whose rollout waits notes why (`note`), at most once a second for each batch and endpoint.
2. When it got an answer, and nothing else waits there, it takes the note away (`clear`).
3. A note whose next try is long over counts no more: whoever wrote it has ended.

Nothing is written for a batch that has ended or was deleted (`waiting.lua`).
"""

from collections.abc import Mapping

from pydantic import ValidationError

from rolloutpool_common.protocol.waiting import Waiting
from rolloutpool_common.store.connection import Connection

__all__ = ["FIELD", "Waits", "read_waits"]

FIELD = "waits:"
"""What these fields of a batch begin with; the endpoint follows."""
STALE_SECONDS = 60.0
"""After its next try. The try itself may take as long as the time limit of a call, but most fail at once."""


class Waits:
    """Writes the notes."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def note(self, batch_id: str, waiting: Waiting) -> None:
        """Says what rollouts of a batch wait for; replaces what was said of this endpoint before."""
        await self._connection.script("waiting", batch_id, FIELD + waiting.endpoint, waiting.model_dump_json())

    async def clear(self, batch_id: str, endpoint: str) -> None:
        """Says that nothing waits at an endpoint any more."""
        await self._connection.script("waiting", batch_id, FIELD + endpoint, "")


def read_waits(fields: Mapping[str, bytes], now_s: float) -> list[Waiting]:
    """Reads the notes that count now.

    Args:
        fields: Of the batch.
        now_s: Unix time.

    Returns:
        They, ordered by endpoint.
    """
    found = []
    for name, value in sorted(fields.items()):
        if name.startswith(FIELD):
            try:
                waiting = Waiting.model_validate_json(value)
            except ValidationError:  # another version has written it
                continue
            if waiting.next_try.timestamp() + STALE_SECONDS > now_s:
                found.append(waiting)
    return found
