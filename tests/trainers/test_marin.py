"""Our samples as conversations of Marin's rollout engine, in its own type: `make test-trainers`."""

from typing import Any

import pytest
from tests.support.exported_rollouts import FORKED, ONE, PLAIN

from rolloutpool_rl.export import marin_conversations

models: Any = pytest.importorskip("rolloutengine.models", reason="it has an environment of its own: make test-trainers")


def test_a_sample_is_a_conversation() -> None:
    (record,) = [models.ConversationRecord(**row) for row in marin_conversations(PLAIN)]
    assert record.response_token_ids == tuple(ONE["response_ids"])
    assert record.loss_mask == tuple(ONE["response_mask"])
    assert record.messages[-1]["role"] == "assistant"
    # A frozen record of tuples can be compared and hashed where its messages are left out.
    assert all(
        isinstance(getattr(record, name), tuple) for name in ("messages", "prompt_token_ids", "logprobs", "steps")
    )


def test_a_fork_is_two_conversations_of_one_rollout() -> None:
    records = tuple(models.ConversationRecord(**row) for row in marin_conversations(FORKED))
    rollout = models.Rollout(run_id=FORKED.uid, conversations=records, stop_reason="stop")
    assert [record.prompt_token_ids for record in rollout.conversations] == [(1, 2), (1, 2, 9, 9, 9)]
