"""What is kept of a journal is what its result lacks; `tests/property/test_kept_journal.py` has random histories."""

import hashlib
import json
from pathlib import Path
from random import Random

import pytest
from tests.support.finished_rollouts import rollout, turn
from tests.support.journals import turn_record
from tests.support.kept_journals import OF_RELEASE_0_2, carrying

from rolloutpool_common.protocol.journal import JournalRecord, RecordUnknown, encode_record
from rolloutpool_common.protocol.kept_journal import JournalMissing, ResultChanged, read_journal
from rolloutpool_common.protocol.messages import Message
from rolloutpool_common.protocol.replay import ReplayRecord
from rolloutpool_common.protocol.result import RolloutResult, encode_result
from rolloutpool_common.tokens.ledger import TokenLedger

FORM_1 = json.loads(Path(__file__).with_name("kept_journal_1.json").read_text(encoding="utf-8"))
"""A result of a random history as the first form was written, and the digest of its journal."""
QUESTION = {"role": "user", "content": "2 + 2?", "tool_calls": None, "tool_call_id": None}


def one_turn(ids: list[int], logprobs: list[float], text: str = "4") -> tuple[RolloutResult, list[JournalRecord]]:
    """A rollout of one turn, and its journal."""
    ledger = TokenLedger()
    ledger.seed([1, 2, 3])
    ledger.append_sampled(ids, logprobs, turn=1)
    record = turn_record(text)
    record.entries = ledger.entries
    said = [Message.model_validate(message) for message in (QUESTION, record.message)]
    return rollout(*ledger.samples(), turns=[record.summary], messages=said), [record]


def size(result: RolloutResult) -> int:
    assert result.replay is not None
    return len(result.replay.journal or "")


def test_what_the_result_has_takes_nothing() -> None:
    pick = Random(1)
    ids = [pick.randrange(2**32) for _ in range(200_000)]
    result, records = one_turn(ids, [-pick.random() for _ in ids], "x".join(map(str, ids)))
    kept = carrying(result, records, [QUESTION])
    # 2.4 MB of numbers and 2 MB of text, and some bytes for each of zstd's blocks.
    assert size(kept) < 4000
    assert read_journal(kept).records == records


def test_other_json_libraries_write_other_numbers() -> None:
    result, records = one_turn([4, 5, 6], [-0.0, -0.5, -2.0])
    document = json.loads(encode_result(carrying(result, records, [QUESTION])))
    # As JavaScript does.
    document["samples"][0]["response_logprobs"] = [0, -0.5, -2]
    document["spans"] = dict.fromkeys(document["spans"], 0)
    kept = read_journal(RolloutResult.model_validate_json(json.dumps(document)))
    assert [encode_record(record) for record in kept.records] == [encode_record(record) for record in records]


def test_the_first_form_is_read_for_good() -> None:
    kept = read_journal(RolloutResult.model_validate(FORM_1["result"]))
    digest = hashlib.sha256(b"\n".join(map(encode_record, kept.records))).hexdigest()
    assert (len(kept.records), digest) == (FORM_1["records"], FORM_1["digest"])
    assert {record.kind for record in kept.records} == {"environment", "turn", "observation", "edit"}


def test_what_cannot_be_read_says_why() -> None:
    result, records = one_turn([4], [-0.5])
    kept = carrying(result, records, [QUESTION])
    assert kept.replay is not None
    for record, why in (
        (None, "no record"),
        (ReplayRecord.model_validate(OF_RELEASE_0_2), r"release 0\.2"),
        (kept.replay.model_copy(update={"journal": "Ag=="}), "newer release"),
    ):
        with pytest.raises(JournalMissing, match=why):
            read_journal(kept.model_copy(update={"replay": record}))
    for journal in ("not base64", "AQ", "AQ==", (kept.replay.journal or "")[:-8]):
        with pytest.raises(ResultChanged):
            read_journal(kept.model_copy(update={"replay": kept.replay.model_copy(update={"journal": journal})}))


def test_the_parts_that_were_changed_are_named() -> None:
    result, records = one_turn([4], [-0.5])
    kept = carrying(result, records, [QUESTION])
    kept.messages[0].content = "3 + 3?"
    kept.turns[0] = turn(2)
    kept.tokenizer["transformers_version"] = "0"
    kept.samples[0].response_ids[0] = 7
    with pytest.raises(ResultChanged, match="tokenizer, messages, turns, sample 0") as caught:
        read_journal(kept)
    assert caught.value.parts == ("tokenizer", "messages", "turns", "sample 0")


def test_a_record_of_another_release_is_known_as_such() -> None:
    result, records = one_turn([4], [-0.5])
    records[0].kind = "thought"  # type: ignore[assignment]
    with pytest.raises(RecordUnknown, match="thought"):
        read_journal(carrying(result, records, [QUESTION]))
