"""Says what rollouts wait for: noted by their workers while they wait, and read with the batch or the rollout.

1. A worker whose rollout waits notes why, in the rollout's hash (`note`). At most once a second for each batch and
   endpoint it notes it for the batch too, as a field of the batch: readers of the batch get it for nothing.
2. Each note also puts the rollout among those of its batch that wait there, whatever worker they are with or in the
   queue; their number is another field of the batch.
3. With the first answer it takes the rollout's note away; the batch's goes when nothing of it waits there (`clear`).
4. A note whose next try is long over counts no more, and its rollout neither: whoever wrote it has ended. A rollout's
   note is of one attempt.

Nothing is written for a batch that has ended or was deleted, nor by an attempt that is over (`waiting.lua`). What the
whole pool lacks is noted nowhere (`pool_waits`).
"""

import time
from collections.abc import Mapping

from pydantic import ValidationError

from rolloutpool_common.composition import CAPABILITIES
from rolloutpool_common.outcomes import RolloutStatus
from rolloutpool_common.protocol.waiting import Waiting
from rolloutpool_common.store import keys
from rolloutpool_common.store.connection import Connection
from rolloutpool_common.store.errors import store_errors

FIELD = "waits:"
"""What these fields of a batch begin with; the endpoint follows, or what the pool lacks."""
_COUNT = "waiting:"
"""The same of the fields with the numbers of rollouts."""
STALE_SECONDS = 60.0
"""After its next try. The try itself may take as long as the time limit of a call, but most fail at once."""


class Waits:
    """Writes the notes."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def note(self, uid: str, attempt: int, waiting: Waiting, *, batch: bool, counted: bool = True) -> None:
        """Says what a rollout waits for; replaces what was said of it before."""
        place = waiting.endpoint or str(waiting.waits_for)
        left = STALE_SECONDS + (0.0 if waiting.next_try is None else waiting.next_try.timestamp() - time.time())
        await self._write(uid, attempt, place if counted else "", "1" if batch else "", waiting.model_dump_json(), left)

    async def clear(self, uid: str, attempt: int, place: str) -> None:
        """Says that a rollout waits no more at this endpoint, or for what lacked."""
        await self._write(uid, attempt, place, "", "", 0.0)

    async def _write(self, uid: str, attempt: int, place: str, told: str, note: str, seconds: float) -> None:
        split = keys.split_uid(uid)
        if split is not None:
            await self._connection.script("waiting", *split, attempt, place, told, note, f"{seconds:.3f}")


def read_waits(fields: Mapping[str, bytes], now_s: float) -> list[Waiting]:
    """Reads the notes of a batch that count now."""
    found = []
    for name, value in sorted(fields.items()):
        waiting = _read(value, now_s) if name.startswith(FIELD) else None
        if waiting is not None:
            # A worker of an earlier release counts its own rollouts, in the note.
            counted = int(fields.get(_COUNT + name.removeprefix(FIELD), 0))
            found.append(waiting.model_copy(update={"rollouts": max(counted, waiting.rollouts)}))
    return found


def own_wait(note: bytes | None, attempt: bytes | None, now_s: float) -> Waiting | None:
    """Reads what a rollout that has not ended itself waits for."""
    if note is None or attempt is None:
        return None
    of, _, data = note.partition(b" ")
    return _read(data, now_s) if of == attempt else None


def is_queued(status: bytes | None) -> bool:
    """Whether the status of a rollout in Redis says that no worker has it; before its first claim it has none."""
    return status is None or status.decode() == RolloutStatus.QUEUED


def status_of(status: bytes | None, stage: bytes | None) -> RolloutStatus:
    """Says where a rollout stands."""
    if stage is not None:
        return RolloutStatus.GRADING
    return RolloutStatus.QUEUED if status is None else RolloutStatus(status.decode())


def stage_waits(rollouts: int) -> list[Waiting]:
    """Says what rollouts of a batch wait for that are in a stage of a capability; nothing of a batch without such."""
    found = [capability.waiting(rollouts) for capability in CAPABILITIES] if rollouts else []
    return [waiting for waiting in found if waiting is not None]


async def run_wait(connection: Connection, run: bytes | None, rollouts: int = 1) -> Waiting | None:
    """Says what rollouts of a run wait for while it stands still; those of a batch without a run never do."""
    # Such a batch has its own id in the place of a run.
    if run is None or b"/" not in run:
        return None
    with store_errors():
        found = [await capability.stopped(connection, run.decode()) for capability in CAPABILITIES]
    stopped = next(filter(None, found), None)
    return stopped and stopped.model_copy(update={"rollouts": rollouts})


def _read(data: bytes, now_s: float) -> Waiting | None:
    try:
        waiting = Waiting.model_validate_json(data)
    except ValidationError:  # another version has written it
        return None
    next_s = 0.0 if waiting.next_try is None else waiting.next_try.timestamp()
    return waiting if next_s + STALE_SECONDS > now_s else None
