"""The record in a result that a replay or a fork begins with (`common/protocol/replay.py`)."""

from array import array

import orjson

from rolloutpool_common.protocol.options import RolloutSpec, RunOptions
from rolloutpool_common.protocol.replay import ReplayRecord, definitions_digest
from rolloutpool_common.protocol.result import Sample
from rolloutpool_common.store import Claim
from rolloutpool_common.tokens.arrays import id_bytes, id_hash, sliced
from rolloutpool_worker.conversation.conversation import Conversation

__all__ = ["KEPT_OPTIONS", "replay_record", "sample_digest"]

KEPT_OPTIONS = frozenset({*RunOptions.model_fields, "sampling_params", "tokenizer_name", "v1"}) - {"metadata"}
"""Fields of a `RolloutSpec` that the record keeps: what decides how it runs. Names and metadata are in the result;
endpoint and key are given anew."""
MOST_TOOLS_BYTES = 16_384
"""Of the definitions of an environment's tools."""


def replay_record(claim: Claim, talk: Conversation, samples: list[Sample]) -> ReplayRecord | None:
    """Makes the record of a rollout.

    Args:
        claim: Of the rollout, as it was submitted.
        talk: Its conversation.
        samples: Of the conversation.

    Returns:
        The record; None where the batch wants none, nothing was sampled, there are no ids, or several branches.
    """
    past, session = talk.measures.past, talk.session
    if past is None or not talk.turns or len(talk.branches) > 1 or claim.spec.messages_only:
        return None
    spec, given = claim.spec, len(claim.spec.messages)
    tools = [] if session is None else [tool.shown for tool in session.tools.values()]
    return ReplayRecord(
        options=_options(spec),
        given=given,
        # The conversation's own spec has the messages that the session began with.
        opened=len(talk.spec.messages) - given,
        tools_digest=definitions_digest(talk.tokens.tools),
        tools=tools if len(orjson.dumps(tools)) <= MOST_TOOLS_BYTES else [],
        crash=None if session is None else session.environment.crash,
        by_text=talk.acts_by_text,
        turns=past.turns,
        samples=list(map(sample_digest, samples)),
        edits=past.recorded_edits(),
        steps=past.steps,
        snapshots=past.snapshots,
    )


def sample_digest(sample: Sample) -> str:
    """Returns the digest of a sample's ids, prompt and response: blake2b-128, hex."""
    running = id_hash()
    for ids in (sample.prompt_ids, sample.response_ids):
        for part in sliced(ids):
            running.update(id_bytes(array("I", part)))
    return running.hexdigest()


def _options(spec: RolloutSpec) -> dict[str, object]:
    return spec.model_dump(mode="json", include=set(KEPT_OPTIONS), exclude_defaults=True)
