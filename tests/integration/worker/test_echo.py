"""Delta echo: what the pool knows need not come back, and only where the trainer's own ids have the digest."""

import hashlib
import struct
from collections.abc import Sequence

from tests.support.inside_worker import InsideWorker
from tests.support.scripted_trainer import ScriptedTrainer, scripted_trainer
from tests.support.trainer_script import ADD, ADD_COMPACT, Exchange, say

from rolloutpool_common.outcomes import RolloutStatus
from rolloutpool_common.protocol.result import Alignment, RolloutResult
from rolloutpool_common.rendering import ChatTokenizer

LONG = [{"role": "user", "content": "Calculate 15 + 23. " + "7 3 1 9 " * 80}]
"""More than 512 ids."""
TURNS = 20


def digest(ids: Sequence[int]) -> str:
    return hashlib.blake2b(struct.pack(f"<{len(ids)}I", *ids), digest_size=16).hexdigest()


def prompt_of(trainer: ScriptedTrainer, result: RolloutResult, exchange: Exchange) -> list[int]:
    """The whole prompt of a turn that is in the last sample, from the trainer's own session."""
    (sample,) = trainer.app.get_session(result.rollout_id, result.uid).samples
    ids = [*sample.prompt_ids, *sample.response_ids]
    return ids[: result.turns[int(exchange.key) - 1].prompt_tokens]


async def test_the_known_prefix_is_left_out_but_on_turn_2_each_16th_and_the_last(
    inside: InsideWorker, tokenizer: ChatTokenizer
) -> None:
    async with scripted_trainer(tokenizer, *[say(ADD_COMPACT)] * (TURNS - 1), say()) as trainer:
        result = await inside.run_one(server_url=trainer.url, messages=LONG, max_turns=TURNS)
        assert result.status is RolloutStatus.COMPLETED, result.failure
        assert (result.alignment, result.num_llm_calls) == (Alignment.EXACT, TURNS)
        whole = {1, 2, 16, TURNS}
        for turn, exchange in enumerate(trainer.exchanges, start=1):
            prompt, echo = prompt_of(trainer, result, exchange), exchange.reply["prompt_token_ids"]
            if turn in whole:
                assert "x-echo-prefix-length" not in exchange.headers
                assert "x-echo-prefix-length" not in exchange.reply_headers
                assert echo == prompt
            else:
                before = result.turns[turn - 2]
                prefix = before.prompt_tokens + before.sampled_tokens
                assert exchange.headers["x-echo-prefix-length"] == str(prefix)
                assert exchange.headers["x-echo-prefix-digest"] == digest(prompt[:prefix])
                assert exchange.reply_headers["x-echo-prefix-length"] == str(prefix)
                assert echo == prompt[prefix:]


def check_proof(tokenizer: ChatTokenizer, result: RolloutResult, drifted: int) -> None:
    """Checks that one turn has a difference, which the samples on both sides of the fork have at that place."""
    assert [turn.turn for turn in result.turns if turn.difference is not None] == [drifted]
    found = result.turns[drifted - 1].difference
    assert found is not None
    before, after = ([*sample.prompt_ids, *sample.response_ids] for sample in result.samples)
    at = found.position
    assert before[at - 8 : at] == after[at - 8 : at] == found.before
    # The first sample ends with what was sampled; the ledger expected more after it.
    assert before[at : at + 24] == found.expected[: len(before) - at]
    assert after[at : at + 24] == found.echoed
    # The policy's compact arguments, which this trainer writes with spaces.
    assert tokenizer.decode(found.expected) != tokenizer.decode(found.echoed)


async def test_a_trainer_with_other_ids_sends_all_of_them_and_the_drift_is_seen(
    inside: InsideWorker, tokenizer: ChatTokenizer
) -> None:
    lines = (say(ADD), say(ADD), say(ADD_COMPACT), say(ADD), say())
    async with scripted_trainer(tokenizer, *lines, keeps_ids=False) as trainer:
        result = await inside.run_one(server_url=trainer.url, messages=LONG)
        assert result.status is RolloutStatus.COMPLETED, result.failure
        drift = ["none", "none", "none", "tool_call_reserialised", "none"]
        assert [turn.drift for turn in result.turns] == drift
        check_proof(tokenizer, result, 4)
        offered = [exchange.headers.get("x-echo-prefix-length") for exchange in trainer.exchanges]
        taken = [exchange.reply_headers.get("x-echo-prefix-length") for exchange in trainer.exchanges]
        assert [bool(prefix) for prefix in offered] == [False, False, True, True, True]
        assert taken == [None, None, offered[2], None, offered[4]]
        assert [len(sample.segments) for sample in result.samples] == [5, 3]
