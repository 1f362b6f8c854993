"""Whether each rollout of a campaign got its grade: one, and the right one; and no failure of a grader as a number.

The truth is what the trainers noted as they sampled, and which graders the client asked for.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.chaos.graders import BROKEN, digest_of
from tests.chaos.manners import MUST_COMPLETE, Manner

Results = Mapping[str, Mapping[str, Any]]
FAILURES = ("grader_error", "grade_late", "group_grade_late", "grade_invalid")


def graders_of(client: Sequence[dict[str, Any]]) -> dict[str, tuple[str | None, str | None]]:
    """The grader and the group of each accepted rollout, by uid."""
    found: dict[str, tuple[str | None, str | None]] = {}
    for entry in client:
        if entry["event"] == "accepted" and "graders" in entry:
            groups = [group and f"{entry['batch']} {group}" for group in entry["groups"]]
            found.update(zip(entry["rollouts"], zip(entry["graders"], groups, strict=True), strict=True))
    return found


def is_grader_failure(result: Mapping[str, Any], grader: str | None) -> bool:
    """Whether it failed only because its grader always fails."""
    failure = result["failure"]
    return grader == BROKEN and failure is not None and failure["category"] == "grader_error"


def waited_for_sibling(result: Mapping[str, Any], group: str | None, groups: Mapping[str, Sequence[Manner]]) -> bool:
    """Whether its group's grade was late because a sibling's port keeps its rollouts for long, or does nothing at all.

    Args:
        result: What was delivered.
        group: The rollout's group.
        groups: The manners of the ports of each group's rollouts.
    """
    failure = result["failure"]
    late = failure is not None and failure["category"] == "group_grade_late"
    return late and any(manner not in MUST_COMPLETE for manner in groups.get(group or "", ()))


def wrong_grades(
    graders: Mapping[str, tuple[str | None, str | None]],
    results: Results,
    sampled: Mapping[str, Mapping[int, Mapping[str, Any]]],
) -> Iterator[str]:
    """Names each rollout whose grade is not what it must be, with what is wrong."""
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for uid, (grader, group) in graders.items():
        result = results.get(uid)
        if result is None:
            continue
        if group is not None and result["status"] == "completed":
            groups[group].append(uid)
        if result["status"] != "completed":
            if result["reward"] is not None or result["token_rewards"] is not None:
                yield f"{uid} (failed, with reward {result['reward']})"
        elif grader is None:
            if result["reward"] is not None or result["grade"] is not None:
                yield f"{uid} (no grader, and reward {result['reward']})"
        elif result["grade"] is None or result["grade"]["grader"] != grader or grader == BROKEN:
            yield f"{uid} ({grader}: {result['grade']})"
        elif group is None:
            turns = sampled.get(uid, {})
            ids = [token for turn in sorted(turns) for token in turns[turn]["ids"]]
            if result["reward"] != digest_of(ids):
                yield f"{uid} ({grader}: {result['reward']} for {digest_of(ids)})"
            elif grader == "digest" and result["token_rewards"] != _per_token(result):
                yield f"{uid} (rewards per token)"
    for uids in groups.values():
        members = sorted(uids, key=lambda uid: int(uid.rpartition("-")[2]))
        for place, uid in enumerate(members):
            if (results[uid]["reward"], results[uid]["reward_parts"]) != (place, {"members": len(members)}):
                yield f"{uid} (place {results[uid]['reward']} of {results[uid]['reward_parts']} for {place})"


def _per_token(result: Mapping[str, Any]) -> list[list[float]]:
    # That ids and mask are the right ones is judged elsewhere.
    return [
        [float(token * mask) for token, mask in zip(sample["response_ids"], sample["response_mask"], strict=True)]
        for sample in result["samples"]
    ]
