"""Says what grading keeps in Redis, and what the store does for it. The stage itself is in `kept`.

rp:grading                 zset    uid -> ms of its grader's deadline, of rollouts that are graded or wait for that
rp:rollout:{uid}:grades    string  of the rollout that leads its group: the group's grades, until all are delivered
rp:batch:{b}:scalars       list    records of annotations, one number for a rollout (`annotations`)
rp:batch:{b}:annotated     set     the requests that brought annotations
rp:rollout:{uid}:streams   list    records of annotations, one number for a token
rp:regrade:{id}            hash    a regrade: job (JSON), done, counters (`regrades`). It expires by itself, as do:
rp:regrade_worker:{id}     string  the worker that does it
rp:regrade_told:{id}       string  a worker was told of it

Fields of a batch's hash: `graded` (some rollout names a grader), `grading` (how many are in the stage). Of its
`group_counts`: `due:{group}`, `held:{group}`, `leader:{group}`, `gone:{group}`. Of a rollout's hash: `grade_retries`,
`grade_due` (ms, where its deadline passed in a pause of its run).
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from rolloutpool_common.capabilities.grading.errors import GradeLate
from rolloutpool_common.capability import Ends, Gauge, PluginKind, StoredCapability, StoreDoor
from rolloutpool_common.protocol.waiting import Waiting, WaitsFor

if TYPE_CHECKING:
    from rolloutpool_common.protocol.batch import BatchRequest

GRADING = "rp:grading"
AT_ONCE = 1000
"""Rollouts whose deadline has passed, in one round."""


class Grading(StoredCapability):
    """The stage of grades, as the store sees it."""

    name = "grading"
    mark = "graded"
    batch_parts = ("scalars", "annotated")
    rollout_parts = ("grades", "streams")
    sizes_groups = True
    gauges = (Gauge("rollouts_grading", "Rollouts that wait for their grade, and are sampled.", GRADING),)
    plugins = PluginKind(kind="grader", words="grader", option="grader", announced="graders")

    def asked(self, batch: "BatchRequest | None", rollouts: Iterable[Mapping[str, Any]]) -> bool | None:
        """Whether any of its rollouts names a grader."""
        return any(options.get("grader") is not None for options in rollouts) or None

    def waiting(self, rollouts: int) -> Waiting:
        """Says that some rollouts wait for their grades."""
        message = "their conversations are complete; their graders have not ended, or wait for the rest of a group"
        return Waiting(waits_for=WaitsFor.GRADER, message=message, rollouts=rollouts)

    async def tidy(self, door: StoreDoor, ends: Ends) -> int:
        """Delivers rollouts without a grade whose grader's deadline has passed; returns how many."""
        ended, due = 0, await door.script("grades_due", AT_ONCE)
        for raw, of_group in zip(due[::2], due[1::2], strict=True):
            batch_id, _, index = raw.decode().rpartition("-")
            text = "the group had no grade when its grader's deadline passed" if of_group else None
            if await ends.fail(batch_id, int(index), GradeLate(text, group=bool(of_group)).failure()):
                ended += 1
            else:
                # The script takes a rollout that it ends off the list. One that is gone is taken off here.
                await door.redis.zrem(GRADING, raw)
        return ended
