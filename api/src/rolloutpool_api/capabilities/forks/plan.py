"""From a finished rollout to the batch of its forks.

1. The parent's result is read, with its journal. What cannot be continued is refused, with the reason: a result that
   has none, an environment whose session cannot be made again, a turn before the first or past the end.
2. A document of `POST /v1/batches` is written, with the parent's options and messages and what the request gives, and
   validated like any other: hosts, secrets, names, sizes.
3. The batch gets the parent's result, which its workers read (`store/staging.py`), so the parent may be deleted.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import orjson

from rolloutpool_api.checks import Catalog, expanded_ids
from rolloutpool_api.errors import Conflict, Rejected
from rolloutpool_api.fault_list import FaultList
from rolloutpool_api.restrictions import Restrictions
from rolloutpool_api.submission import plan_batch
from rolloutpool_common.capabilities.forks.origin import ForkOrigin
from rolloutpool_common.capabilities.forks.wire import ForkRequest
from rolloutpool_common.outcomes import FinishReason, RolloutStatus
from rolloutpool_common.protocol.endpoint import EndpointOptions, EndpointProtocol
from rolloutpool_common.protocol.environments import CrashEffect
from rolloutpool_common.protocol.errors import Fault
from rolloutpool_common.protocol.journal import (
    EnvironmentRecord,
    JournalRecord,
    JournalUnreadable,
    ObservationRecord,
    TurnRecord,
)
from rolloutpool_common.protocol.kept_journal import JournalMissing, KeptJournal, ResultChanged, read_journal
from rolloutpool_common.protocol.options import RolloutOptions
from rolloutpool_common.protocol.result import RolloutResult
from rolloutpool_common.store import NewBatch

_LAST = frozenset({FinishReason.STOP, FinishReason.LENGTH, FinishReason.ENVIRONMENT, FinishReason.STRATEGY})
"""Ends after which an agent does not go on, whatever its limits are."""
_ITEM = re.compile(r"^rollouts\[\d+\]\.")
_ENDPOINTS_OWN = frozenset({"idempotent", "restartable", "on_ambiguous_turn"})
"""What a trainer has promised or allowed for its own endpoint; the last one is of results before 0.3."""


def plan_fork(
    data: bytes,
    request: ForkRequest,
    catalog: Catalog | None,
    restrictions: Restrictions,
    *,
    owner: str,
    idempotency_key: str | None,
) -> NewBatch:
    """Makes the batch of a rollout's forks."""
    result = RolloutResult.model_validate_json(data)
    journal = _journal_of(result)
    _check_turn(result, request)
    _check_environment(journal.records, request.turn)
    document = _document(result, journal.submitted, request)
    try:
        new = plan_batch(document, catalog, restrictions, owner=owner, idempotency_key=idempotency_key)
    except Rejected as rejected:
        raise _renamed(rejected) from None
    origin = ForkOrigin(uid=result.uid, turn=request.turn, train_trunk=request.train_trunk)
    shared = {**orjson.loads(new.shared), "fork": origin.model_dump()}
    digest = hashlib.sha256(new.digest.encode() + origin.model_dump_json().encode()).hexdigest()
    return replace(new, shared=orjson.dumps(shared), trunk=data, digest=digest)


def _journal_of(result: RolloutResult) -> KeptJournal:
    try:
        journal = read_journal(result)
    except (JournalMissing, JournalUnreadable, ResultChanged) as fault:
        raise Conflict(f"rollout {result.uid} cannot be continued: {fault.message}") from None
    if any(record.branch for record in journal.records):
        raise Conflict(f"rollout {result.uid} has several branches, and a fork counts the turns of one")
    if not result.samples:
        raise Conflict(f"rollout {result.uid} has no tokens, so it cannot be continued")
    return journal


def _check_turn(result: RolloutResult, request: ForkRequest) -> None:
    faults, turns = FaultList(), len(result.turns)
    # A conversation that was graded had ended, also where its grade has failed.
    reason = result.finish_reason if result.grade is None else result.grade.finish_reason
    complete = result.status is RolloutStatus.COMPLETED or result.grade is not None
    ended = complete and (reason in _LAST or (reason is FinishReason.MAX_TOKENS and _has_answered(result)))
    last = turns if ended else turns + 1
    if request.turn > last:
        why = f"it ended with {reason}, so " if ended else ""
        faults.add("turn", f"rollout {result.uid} has {turns} turns; {why}{last} is the last that can be sampled")
    options = _options_of(result)
    max_turns = request.max_turns or options.get("max_turns", RolloutOptions.model_fields["max_turns"].default)
    if request.turn > max_turns:
        faults.add("max_turns", f"is {max_turns}, so that turn {request.turn} is never sampled; give a higher one")
    total = RolloutOptions.model_fields["max_tokens_total"].default
    most = request.max_tokens_total or options.get("max_tokens_total", total)
    kept = sum(turn.sampled_tokens for turn in result.turns[: request.turn - 1])
    if kept >= most:
        faults.add(
            "max_tokens_total", f"is {most}, and the turns before {request.turn} have {kept} sampled tokens already"
        )
    if faults.total:
        raise Rejected(faults.listed, faults.total)


def _has_answered(result: RolloutResult) -> bool:
    """Whether the last turn would have ended the conversation, had it not used up the limit of tokens."""
    options = _options_of(result)
    plain = options.get("agent") is None and options.get("environment") is None
    return plain and "termination_strategy" not in result.metadata and not result.turns[-1].tool_calls


def _check_environment(records: Sequence[JournalRecord], turn: int) -> None:
    session = next((record for record in records if isinstance(record, EnvironmentRecord)), None)
    if session is None:
        return
    if turn > 1 and session.crash is CrashEffect.NONE:
        raise Conflict(
            f"environment {session.name} declares that its sessions cannot be made again (crash: none), so only turn 1 "
            "can be forked"
        )
    asked, number, facts = 0, 0, None
    for record in records:
        number += isinstance(record, TurnRecord)
        if number < turn and isinstance(record, ObservationRecord) and record.environment is not None:
            asked, facts = number, record.environment
    if session.crash is CrashEffect.SNAPSHOT and facts is not None and facts.steps and facts.snapshot is None:
        raise Conflict(
            f"the snapshot of environment {session.name} after turn {asked} is not in the result: all snapshots of a "
            "rollout together were too long, and the oldest were left out"
        )


def _document(result: RolloutResult, submitted: list[dict[str, Any]], request: ForkRequest) -> dict[str, Any]:
    """Writes the forks as a document of `POST /v1/batches`."""
    kept = _options_of(result)
    before = kept.get("protocol", EndpointProtocol.CALLBACK)
    dropped = {*_ENDPOINTS_OWN, "v1"} | (set() if request.trainer is None else EndpointOptions.model_fields.keys())
    options = {key: value for key, value in kept.items() if key not in dropped}
    if request.trainer is not None:
        # What the parent's endpoint was holds for another one only as far as nothing else is said of that.
        known = {key: kept[key] for key in EndpointOptions.model_fields if key in kept}
        options |= known | request.trainer.endpoint_fields()
        after = options.get("protocol", EndpointProtocol.CALLBACK)
        if (before == EndpointProtocol.CALLBACK) != (after == EndpointProtocol.CALLBACK):
            raise Conflict(
                f"rollout {result.uid} was asked by {before}, and {after} is another kind of endpoint: a callback says "
                "what the policy wrote, an engine's ids are parsed here; fork it in the parent's kind"
            )
    given = ("callback_api_key", "max_turns", "max_tokens_total", "deadline_seconds", "server_url")
    item = {
        **options,
        **{name: value for name in given if (value := getattr(request, name)) is not None},
        "messages": submitted,
        "metadata": {**result.metadata, **request.metadata},
        "sampling_params": {**options.get("sampling_params", {}), **request.sampling_params},
        "labels": {**result.labels, **request.labels},
    }
    if request.group is not None or request.n > 1:
        item["group"] = request.group or f"{result.uid}/{request.turn}"
    trainer = None if request.trainer is None else request.trainer.model_dump(mode="json", exclude_unset=True)
    return {
        "rollouts": _items(item, request),
        "trainer": trainer,
        "priority": request.priority.value,
        "run": request.run,
        "labels": {**request.labels, "forked_from": result.uid},
    }


def _options_of(result: RolloutResult) -> dict[str, Any]:
    return {} if result.replay is None else result.replay.options


def _items(item: dict[str, Any], request: ForkRequest) -> list[dict[str, Any]]:
    named = {} if request.rollout_id is None else {"rollout_id": request.rollout_id}
    if request.seed is None:
        return [{**item, **named, "n": request.n}]
    # SGLang has another name for it.
    seed = "sampling_seed" if item.get("protocol") == EndpointProtocol.SGLANG else "seed"
    ids = [None] * request.n if request.rollout_id is None else expanded_ids(request.rollout_id, request.n)
    return [
        {
            **item,
            **({} if name is None else {"rollout_id": name}),
            "sampling_params": {**item["sampling_params"], seed: request.seed + place},
        }
        for place, name in enumerate(ids)
    ]


def _renamed(rejected: Rejected) -> Rejected:
    """Names the places of faults in the request, not in the document that was made of it."""
    faults: dict[tuple[str, str], Fault] = {}
    for fault in rejected.faults:
        place = _ITEM.sub("", fault.path)
        faults[place, fault.message] = Fault(path=place, message=fault.message)
    return Rejected(list(faults.values()), len(faults))
