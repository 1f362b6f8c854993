"""What forks have of their parent: the turns before the one at which they leave it.

A fork's batch keeps the parent's result (`trunk`). Each of its attempts runs like any other, from the first step of the
agent, with channel, tools and session that answer the parent's turns from its journal (`recorded`), and go on to the
real ones after them. So a fork is journaled, resumed and checked as every rollout is.

The session of an environment is brought to where the parent's was, as after a crash (`environments.resume`): a
`stateless` one needs nothing, a `restartable` one gets the parent's calls again and must answer as it did then, and a
`snapshot` one is made of the snapshot after the parent's last kept turn. What the parent's worker has journaled of that
session is in the parent's result.
"""

import asyncio

from cachetools import LRUCache

from rolloutpool_common.capabilities.forks.origin import ForkOrigin
from rolloutpool_common.errors import RequestFault
from rolloutpool_common.protocol.environments import CrashEffect
from rolloutpool_common.protocol.kept_journal import ResultChanged
from rolloutpool_common.protocol.result import RolloutResult
from rolloutpool_common.protocol.turn_headers import TurnKey
from rolloutpool_common.store import Store
from rolloutpool_worker.conversation.beginning import Beginning
from rolloutpool_worker.recorded.script import RecordLacks, Script

_KEPT = 8
"""Parents that a process keeps; the forks of one are run side by side."""
_OFF_LOOP_BYTES = 256 * 1024


def read_trunk(data: bytes, origin: ForkOrigin) -> Beginning:
    """Reads the parent's result."""
    kept = origin.turn - 1
    try:
        script = Script.read(RolloutResult.model_validate_json(data), last=kept)
    except (RecordLacks, ResultChanged) as fault:
        raise RequestFault(f"rollout {origin.uid}: {fault.message}") from None
    lost = script.session is not None and script.session.crash is CrashEffect.NONE
    found = {number for number in range(1, kept + 1) if (turn := script.turn(number)) and turn.trained}
    trained = frozenset(found) if origin.train_trunk else frozenset[int]()
    script.drop_logprobs(keep=trained)
    return Beginning(
        script=script,
        in_place_of=TurnKey(origin.uid, origin.turn),
        prompt_ids=None if script.following is None or lost else script.following.prompt_ids,
        trained=trained,
    )


class Trunks:
    """The trunks of one process, by batch."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._kept: LRUCache[str, Beginning] = LRUCache(_KEPT)
        self._reading = asyncio.Lock()

    async def of(self, batch_id: str, origin: ForkOrigin) -> Beginning:
        """Returns the trunk of a batch's forks."""
        if (trunk := self._kept.get(batch_id)) is not None:
            return trunk
        # One at a time: a thousand forks of one parent may begin together.
        async with self._reading:
            if (trunk := self._kept.get(batch_id)) is None:
                data = await self._store.rollouts.trunk(batch_id)
                if data is None:
                    raise RequestFault(f"the record of rollout {origin.uid} is not kept with this batch any more")
                long = len(data) > _OFF_LOOP_BYTES
                read = await asyncio.to_thread(read_trunk, data, origin) if long else read_trunk(data, origin)
                trunk = self._kept[batch_id] = read
        return trunk
