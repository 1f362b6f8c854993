"""Forks: rollouts that go on from a turn of another one, their parent.

A fork's batch keeps the parent's result (`trunk`). Each of its attempts runs like any other, from the first step of the
agent, with channel, tools and session that answer the parent's turns from its journal (`recorded`), and go on to the
real ones after them. So a fork is journaled, resumed and checked as every rollout is, and its ledger has the parent's
ids because the same entries were written again.

The session of an environment is brought to where the parent's was, as after a crash (`environments.resume`): a
`stateless` one needs nothing, a `restartable` one gets the parent's calls again and must answer as it did then, and a
`snapshot` one is made of the snapshot after the parent's last kept turn. What the parent's worker has journaled of that
session is in the parent's result.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cachetools import LRUCache

from rolloutpool_common.errors import RequestFault
from rolloutpool_common.protocol.environments import CrashEffect
from rolloutpool_common.protocol.journal import JournalRecord, TrainerKind, TurnRecord
from rolloutpool_common.protocol.kept_journal import ResultChanged
from rolloutpool_common.protocol.options import RolloutSpec
from rolloutpool_common.protocol.replay import ForkOrigin
from rolloutpool_common.protocol.result import RolloutResult
from rolloutpool_common.store import Store
from rolloutpool_worker.conversation.fork_point import ForkPoint
from rolloutpool_worker.recorded import RecordedTools, RecordLacks, Script
from rolloutpool_worker.tools import Tool, ToolHost, ToolRunner

_KEPT = 8
"""Parents that a process keeps; the forks of one are run side by side."""
_OFF_LOOP_BYTES = 256 * 1024


@dataclass(frozen=True)
class Trunk:
    """Holds what a fork has of its parent."""

    origin: ForkOrigin
    script: Script = field(repr=False)
    prompt_ids: list[int] | None = field(repr=False)
    """What the first turn of the fork is sampled after; None where the parent has no such turn."""
    trained: frozenset[int]
    """The parent's turns that are trained in the fork too."""

    @classmethod
    def read(cls, data: bytes, origin: ForkOrigin) -> "Trunk":
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
        return cls(
            origin=origin,
            script=script,
            prompt_ids=None if script.following is None or lost else script.following.prompt_ids,
            trained=trained,
        )

    def fork_point(self, kind: TrainerKind) -> ForkPoint:
        """Makes the fork point of one attempt."""
        return ForkPoint(self.origin, self.prompt_ids, self.trained, kind)

    def session_records(self, inherited: Sequence[JournalRecord]) -> Sequence[JournalRecord]:
        """Lists the records by which the session is brought to where it has to be."""
        kept, session = len(self.script), self.script.session
        if session is None or sum(isinstance(one, TurnRecord) for one in inherited) >= max(kept, 1):
            return inherited
        return () if not kept and session.crash is CrashEffect.NONE else self.script.records


def runner_of(trunk: Trunk | None, tools: Mapping[str, Tool], spec: RolloutSpec, host: ToolHost) -> ToolRunner:
    """Makes the runner of a rollout's tools; of a fork's, the parent's calls are answered from its record."""
    if trunk is None:
        return ToolRunner(tools, lenient=spec.v1, host=host, on_error=spec.on_tool_error)
    return RecordedTools(trunk.script, tools, lenient=spec.v1, host=host, on_error=spec.on_tool_error)


class Trunks:
    """The trunks of one process, by batch."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._kept: LRUCache[str, Trunk] = LRUCache(_KEPT)
        self._reading = asyncio.Lock()

    async def of(self, batch_id: str, origin: ForkOrigin | None) -> Trunk | None:
        """Returns the trunk of a batch's forks."""
        trunk = self._kept.get(batch_id)
        if trunk is not None or origin is None:
            return trunk
        # One at a time: a thousand forks of one parent may begin together.
        async with self._reading:
            if (trunk := self._kept.get(batch_id)) is None:
                data = await self._store.rollouts.trunk(batch_id)
                if data is None:
                    raise RequestFault(f"the record of rollout {origin.uid} is not kept with this batch any more")
                long = len(data) > _OFF_LOOP_BYTES
                read = await asyncio.to_thread(Trunk.read, data, origin) if long else Trunk.read(data, origin)
                trunk = self._kept[batch_id] = read
        return trunk
