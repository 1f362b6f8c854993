"""From a request on the Osmosis wire to the batch that the store accepts."""

from dataclasses import replace

from rolloutpool_api.submission import batch_of_one
from rolloutpool_common.capabilities.osmosis.request import OsmosisRequest
from rolloutpool_common.capabilities.osmosis.response import LABEL, UNGRADED
from rolloutpool_common.capabilities.osmosis.stored import NewLease, StoredOsmosis
from rolloutpool_common.composition import OsmosisOptionsFields, asks_of
from rolloutpool_common.store import NewBatch

LONGEST_DEADLINE = 604_800.0
"""Seconds; the batch API refuses a longer one."""


def plan_osmosis(request: OsmosisRequest, *, owner: str, lease: NewLease) -> NewBatch:
    """Makes a batch of one from the Osmosis wire's request."""
    labels = {} if request.label is None else {LABEL: request.label}
    spec = {
        "rollout_id": request.rollout_id,
        "server_url": request.chat_completions_url,
        "messages": [message.wire() for message in request.initial_messages],
        "metadata": request.metadata or {},
        "callback_api_key": request.llm_api_key,
        "labels": labels if request.grade else {**labels, UNGRADED: "false"},
        "sampling_params": {},
        "messages_only": True,
        # No ids, so no tokenizer, and nothing to train.
        "tokenizer_name": "",
        "allow_untrained": True,
        # The wire says nothing of a turn that is asked twice, and OpenAI's own client repeats calls as well.
        "idempotent": True,
        **request.options.model_dump(mode="json", exclude=set(OsmosisOptionsFields.model_fields)),
        **request.rewarded(),
    }
    timeout_s = request.agent_timeout_sec
    # A time that has passed already is a deadline too.
    deadline_s = None if timeout_s is None else min(max(timeout_s, 0.001), LONGEST_DEADLINE)
    new = batch_of_one(spec, owner=owner, key=osmosis_key(request.rollout_id), deadline_s=deadline_s)
    return replace(new, asks={**asks_of(None, [spec]), StoredOsmosis.name: lease})


def osmosis_key(rollout_id: str) -> str:
    """Makes the key under which the store remembers a rollout of the Osmosis wire."""
    return f"osmosis/{rollout_id}"
