"""A result and its record give back the journal, whatever happened; and what is changed in the result is noticed."""

import json
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.property.histories import play
from tests.support.examples import examples
from tests.support.kept_journals import carrying

from rolloutpool_common.protocol.kept_journal import ResultChanged, read_journal
from rolloutpool_common.protocol.result import RolloutResult, encode_result
from rolloutpool_common.tokens.ledger import TokenLedger

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]
SEEDS = st.integers(0, 2**64)


def change_id(result: RolloutResult, pick: Random) -> None:
    sample = pick.choice(result.samples)
    ids = pick.choice((sample.prompt_ids, sample.response_ids))
    ids[pick.randrange(len(ids))] ^= 1 << pick.randrange(32)


def move_id(result: RolloutResult, pick: Random) -> None:
    sample = pick.choice(result.samples)
    sample.prompt_ids.append(sample.response_ids.pop(0))


def change_logprob(result: RolloutResult, pick: Random) -> None:
    logprobs = pick.choice(result.samples).response_logprobs
    logprobs[pick.randrange(len(logprobs))] -= 0.25


def change_message(result: RolloutResult, pick: Random) -> None:
    message = pick.choice(result.messages)
    message.content = f"{message.content}."


def drop_message(result: RolloutResult, pick: Random) -> None:
    del result.messages[pick.randrange(len(result.messages))]


def change_turn(result: RolloutResult, pick: Random) -> None:
    pick.choice(result.turns).prompt_tokens += 1


def drop_sample(result: RolloutResult, pick: Random) -> None:
    del result.samples[pick.randrange(len(result.samples))]


CHANGES = (change_id, move_id, change_logprob, change_message, drop_message, change_turn, drop_sample)


@settings(max_examples=examples(100, 400), deadline=None, suppress_health_check=SLOW)
@given(SEEDS)
def test_result_and_record_are_the_journal(seed: int) -> None:
    history = play(Random(seed))
    result = carrying(history.result, history.records, history.submitted)
    assert result.replay is not None
    text = encode_result(result)
    # As it is stored, as another library writes it, and as a client passes it on.
    for document in (text, json.dumps(json.loads(text), indent=1, ensure_ascii=False), result.model_dump_json()):
        kept = read_journal(RolloutResult.model_validate_json(document))
        assert kept.records == history.records
        assert kept.submitted == history.submitted
    for number, branch in enumerate(history.branches):
        entries = [entry for record in kept.records if record.branch == number for entry in record.entries]
        assert TokenLedger.replay(entries, fingerprint=branch.ledger._fingerprint) == branch.ledger


@settings(max_examples=examples(50, 200), deadline=None, suppress_health_check=SLOW)
@pytest.mark.parametrize("change", CHANGES)
@given(SEEDS)
def test_what_is_changed_is_noticed(change: Callable[[RolloutResult, Random], None], seed: int) -> None:
    pick = Random(seed)
    history = play(pick)
    result = carrying(history.result, history.records, history.submitted)
    if not result.samples:
        return
    change(result, pick)
    with pytest.raises(ResultChanged):
        read_journal(RolloutResult.model_validate_json(encode_result(result)))
