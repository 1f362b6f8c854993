"""The record in a result from which its rollout can be run again (`common/protocol/replay.py`)."""

from collections.abc import Sequence
from dataclasses import replace

import orjson

from rolloutpool_common.protocol.journal import JournalRecord, ObservationRecord
from rolloutpool_common.protocol.kept_journal import keep_journal
from rolloutpool_common.protocol.options import RolloutSpec, RunOptions
from rolloutpool_common.protocol.replay import ReplayRecord, definitions_digest
from rolloutpool_common.protocol.result import RolloutResult
from rolloutpool_common.store import Claim
from rolloutpool_worker.conversation.conversation import Conversation

KEPT_OPTIONS = frozenset({*RunOptions.model_fields, "sampling_params", "tokenizer_name", "v1"}) - {"metadata"}
"""Fields of a `RolloutSpec` that the record keeps: what decides how it runs. Names and metadata are in the result;
endpoint and key are given anew."""
MOST_TOOLS_BYTES = 16_384
"""Of the definitions of an environment's tools."""
MOST_SNAPSHOTS = 256 * 1024
"""Characters of an environment's snapshots, over all turns of a rollout."""


def replay_record(claim: Claim, talk: Conversation, result: RolloutResult) -> ReplayRecord | None:
    """Makes the record of a rollout."""
    spec, session = claim.spec, talk.session
    if not spec.replay_record or not result.turns:
        return None
    tools = [] if session is None else [tool.shown for tool in session.tools.values()]
    submitted = [message.wire() for message in spec.messages]
    return ReplayRecord(
        options=_options(spec),
        given=len(submitted),
        tools_digest=definitions_digest(talk.tokens.tools),
        tools=tools if len(orjson.dumps(tools)) <= MOST_TOOLS_BYTES else [],
        by_text=talk.acts_by_text,
        journal=keep_journal(without_old_snapshots(talk.records), submitted, result),
    )


def without_old_snapshots(records: Sequence[JournalRecord]) -> list[JournalRecord]:
    """Returns the records with the last snapshots that `MOST_SNAPSHOTS` has room for; the older ones are left out."""
    left, found = MOST_SNAPSHOTS, list(records)
    for place in range(len(found) - 1, -1, -1):
        record = found[place]
        if isinstance(record, ObservationRecord) and (facts := record.environment) is not None and facts.snapshot:
            left -= len(facts.snapshot)
            if left < 0:
                found[place] = replace(record, environment=replace(facts, snapshot=None))
    return found


def _options(spec: RolloutSpec) -> dict[str, object]:
    return spec.model_dump(mode="json", include=set(KEPT_OPTIONS), exclude_defaults=True)
