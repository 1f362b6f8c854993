"""Annotations of a request: checked against the batch's rows, and put in the form in which they are stored."""

import hashlib
import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rolloutpool_api.fault_list import FaultList, path
from rolloutpool_common.capabilities.grading.annotating import MAX_NAMES, AnnotationRequest, GroupStatistics
from rolloutpool_common.outcomes import RolloutStatus
from rolloutpool_common.protocol.rows import ENDED_FIELDS
from rolloutpool_common.store import keys
from rolloutpool_common.store.rows import StoredTable

_PLACES = {name: place for place, name in enumerate(ENDED_FIELDS)}
_STATUS, _LENGTHS, _SAMPLED = _PLACES["status"], _PLACES["response_lengths"], _PLACES["sampled_tokens"]
_REWARD = "reward"


@dataclass(frozen=True)
class CheckedAnnotations:
    """Holds what may be stored."""

    scalars: dict[str, dict[int, float]] = field(default_factory=dict)
    """By name, then by the rollout's index."""
    streams: dict[int, dict[str, list[list[float | None]]]] = field(default_factory=dict)
    """By the rollout's index, then by name."""


def request_id(idempotency_key: str | None, batch_id: str, body: bytes) -> str:
    """Makes the id of a request: the same one for the same key and body, a new one without a key.

    Another body under the same key is another request: it would be answered as kept, and be lost.
    """
    if idempotency_key is None:
        return secrets.token_hex(16)
    return hashlib.blake2b(b"/".join((batch_id.encode(), idempotency_key.encode(), body)), digest_size=16).hexdigest()


def indexes_of(request: AnnotationRequest, batch_id: str, total: int, faults: FaultList) -> list[int]:
    """Finds the rollouts that a request names; adds a fault for each that the batch does not have."""
    found = []
    for number, item in enumerate(request.items):
        index = item.rollout
        if isinstance(index, str):
            split = keys.split_uid(index)
            index = split[1] if split is not None and keys.uid_of(batch_id, split[1]) == index else -1
        if not 0 <= index < total:
            faults.add(path("items", number, "rollout"), "is neither a uid nor an index of this batch")
        found.append(index)
    return found


def check_annotations(
    request: AnnotationRequest, indexes: Sequence[int], table: StoredTable, known: Sequence[str], faults: FaultList
) -> CheckedAnnotations:
    """Checks that streams have the lengths of their samples, and that a batch has not too many names."""
    checked = CheckedAnnotations()
    first = table.indexes[0] if table.indexes else 0
    for number, (item, index) in enumerate(zip(request.items, indexes, strict=True)):
        for name, value in item.scalars.items():
            checked.scalars.setdefault(name, {})[index] = value
        if not item.streams:
            continue
        lengths = table.rows[index - first][_LENGTHS]
        for name, stream in item.streams.items():
            given = [len(values) for values in stream]
            if lengths is None:
                faults.add(path("items", number, "streams"), "the rollout has not ended, so it has no tokens yet")
                break
            if given != lengths:
                faults.add(
                    path("items", number, "streams", name),
                    f"must have a list for each sample, as long as its response: {lengths[:20]}, got {given[:20]}",
                )
        checked.streams.setdefault(index, {}).update(item.streams)
    if len({*known, *checked.scalars}) > MAX_NAMES:
        faults.add(path("items"), f"a batch has at most {MAX_NAMES} names of scalars")
    return checked


def scores(table: StoredTable, annotations: Mapping[str, Mapping[int, float]], of: str) -> Mapping[int, float]:
    """Returns what rollouts are worth by a figure, by their index."""
    said = annotations.get(of, {})
    if of != _REWARD:
        return said
    rewards = ((index, row[_PLACES[_REWARD]]) for index, row in zip(table.indexes, table.rows, strict=True))
    return {index: reward for index, reward in rewards if reward is not None} | dict(said)


def group_statistics(table: StoredTable, values: Mapping[int, float]) -> list[GroupStatistics]:
    """Computes the figures of each group."""
    members: dict[str, list[int]] = {}
    for place, group in enumerate(table.groups):
        if group is not None:
            members.setdefault(group, []).append(place)
    found = []
    for group, places in sorted(members.items()):
        ended = [table.rows[place] for place in places if RolloutStatus(table.rows[place][_STATUS]).terminal]
        sampled = [row[_SAMPLED] for row in ended if row[_SAMPLED] is not None]
        mine = [values[table.indexes[place]] for place in places if table.indexes[place] in values]
        found.append(
            GroupStatistics(
                group=group,
                size=len(places),
                ended=len(ended),
                completed=sum(row[_STATUS] == RolloutStatus.COMPLETED for row in ended),
                sampled_tokens=sum(sampled) / len(sampled) if sampled else None,
                annotated=len(mine),
                mean=math.fsum(mine) / len(mine) if mine else None,
                deviation=_deviation(mine) if mine else None,
                min=min(mine, default=None),
                max=max(mine, default=None),
                zero_spread=len(mine) > 1 and min(mine) == max(mine),
            )
        )
    return found


def _deviation(values: Sequence[float]) -> float:
    # Equal values have none, whatever rounding makes of their mean.
    if min(values) == max(values):
        return 0.0
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))
