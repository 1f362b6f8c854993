"""Reads from raw Redis in which places an open rollout is, and judges whether they may stand together.

It shares no code with the scripts that move rollouts. The table of places is in `store/strays.py`.
"""

from collections.abc import Set
from enum import StrEnum
from typing import Any

CLASSES = ("high", "default", "low")


class Place(StrEnum):
    """Says where an open rollout is."""

    RUNNING = "running"
    SUSPECTS = "suspects"
    DELAYED = "delayed"
    PUBLISHED = "published"
    OUTBOX = "outbox"
    HELD = "held"
    CANCELLING = "cancelling"
    OVERDUE = "overdue"
    PRECANCELLED = "precancelled"


_ONE_OF = frozenset({Place.RUNNING, Place.SUSPECTS, Place.DELAYED, Place.PUBLISHED, Place.HELD})


def fault_in(places: Set[Place]) -> str | None:
    """Judges where one open rollout is."""
    if not places:
        return "it is nowhere: nobody would ever run or end it"
    owners = sorted(places & _ONE_OF)
    return f"it is in {' and '.join(owners)} at once" if len(owners) > 1 else None


def places_of(raw: Any, batch_id: str, index: int) -> set[Place]:
    """Reads the places of one open rollout."""
    uid = f"{batch_id}-{index}"
    batch, state = raw.hgetall(f"rp:batch:{batch_id}"), raw.hgetall(f"rp:rollout:{uid}")
    worker = state.get("worker", "")
    found = {
        Place.RUNNING: state.get("status") == "running"
        and raw.sismember(f"rp:worker:{worker}:claims", uid)
        and raw.zscore("rp:workers", worker) is not None,
        Place.SUSPECTS: raw.zscore("rp:suspects", uid) is not None,
        Place.DELAYED: raw.zscore("rp:delayed", uid) is not None,
        Place.PUBLISHED: any(raw.zscore(f"rp:published:{name}", uid) is not None for name in CLASSES),
        Place.OUTBOX: _stands_in_line(raw, batch_id, batch, index),
        Place.HELD: _is_held(raw, batch_id, uid, index, state),
        Place.CANCELLING: bool(raw.sismember("rp:cancelling", batch_id)),
        Place.OVERDUE: _is_overdue(raw, uid),
        Place.PRECANCELLED: bool(raw.sismember("rp:precancelled", uid)),
    }
    return {place for place, there in found.items() if there}


def _stands_in_line(raw: Any, batch_id: str, batch: dict[str, str], index: int) -> bool:
    """An entry in an outbox is of use only where its batch stands in its run's list, and the run in its lane's."""
    priority, run = batch.get("priority", ""), batch.get("run", "")
    paused = raw.zscore("rp:paused", run) is not None
    known = {needs[:32] for needs in raw.lrange(f"rp:lanes:{priority}", 0, -1)}
    for lane in (priority, *raw.smembers(f"rp:batch:{batch_id}:lanes")):
        _, tilde, needs = lane.partition("~")
        if str(index) in raw.lrange(f"rp:batch:{batch_id}:outbox{tilde}{needs}", 0, -1):
            in_run = batch_id in raw.lrange(f"rp:run:{lane}:{run}", 0, -1)
            in_lane = run in raw.lrange(f"rp:runs:{lane}", 0, -1)
            if in_run and (in_lane or paused) and (not needs or needs in known):
                return True
    return False


def _is_held(raw: Any, batch_id: str, uid: str, index: int, state: dict[str, str]) -> bool:
    if state.get("status") != "queued" or "held" not in state or "leads" in state:
        return False
    group = raw.hget(f"rp:batch:{batch_id}:groups", index)
    waiting = (raw.hget(f"rp:batch:{batch_id}:group_counts", f"held:{group}") or "").split()
    return str(index) in waiting and raw.zscore("rp:grading", uid) is not None


def _is_overdue(raw: Any, uid: str) -> bool:
    seconds, micros = raw.time()
    at = raw.zscore("rp:deadlines", uid)
    return at is not None and at <= seconds * 1000 + micros // 1000
