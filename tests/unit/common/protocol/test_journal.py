"""Journal records come back as they were written, and nothing else is taken for one."""

import math
from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.journals import observation_record, turn_record

from rolloutpool_common.protocol.drift import PromptDifference
from rolloutpool_common.protocol.environments import CrashEffect
from rolloutpool_common.protocol.journal import (
    EditRecord,
    EnvironmentRecord,
    JournalRecord,
    JournalUnreadable,
    MaskPlan,
    ObservationRecord,
    PlannedTurn,
    RecordUnknown,
    TrainerKind,
    TurnRecord,
    encode_record,
    parse_record,
    record_length,
)
from rolloutpool_common.protocol.result import ToolTime
from rolloutpool_common.tokens.entries import TokenizerFingerprint
from rolloutpool_common.tokens.ledger import TokenLedger


def entries() -> TokenLedger:
    ledger = TokenLedger(TokenizerFingerprint(tokenizer_sha256="a", template_sha256="b", transformers_version="5"))
    ledger.seed([1, 2, 3])
    ledger.append_sampled([4294967295], [-1 / 3], turn=1, policy_version="v1")
    ledger.append_close([9], turn=1)
    ledger.append_glue([10], turn=1)
    ledger.accept_echo([1, 2, 3, 4294967295, 11])
    ledger.accept_echo([1, 7])
    return ledger


DIFFERENCE = PromptDifference(3, [1, 2, 3], [10, 11], [7])
TURN = replace(
    turn_record(1),
    entries=entries().entries,
    trainer=TrainerKind.KEEPS_IDS,
    llm_ms=math.pi,
    summary=turn_record(1).summary.model_copy(update={"difference": DIFFERENCE}),
)
OBSERVATION = replace(observation_record("38"), times=(ToolTime("add", 0.1, ok=True),))
ENVIRONMENT = EnvironmentRecord(
    name="game",
    crash=CrashEffect.SNAPSHOT,
    messages=[{"role": "user", "content": "Guess", "tool_calls": None, "tool_call_id": None}],
    tools_digest="cd" * 16,
)
EDIT = EditRecord(
    messages=[{"role": "user", "content": "\u2028 ünïcode", "tool_calls": None, "tool_call_id": None, "name": "x"}],
    entries=(),
    planned=PlannedTurn(MaskPlan((20, 26), 26, 20), "ab" * 16, edited=True),
)


def test_records_and_results_of_older_versions_have_neither_times_nor_differences() -> None:
    turn, seen = orjson.loads(encode_record(TURN)), orjson.loads(encode_record(OBSERVATION))
    assert turn["summary"].pop("difference") == {
        "position": 3,
        "before": [1, 2, 3],
        "expected": [10, 11],
        "echoed": [7],
    }
    for name in ("start_ms", "llm_ms", "tools"):
        del turn["summary"][name]
    del seen["times"], seen["environment"]
    old = parse_record(orjson.dumps(turn))
    assert isinstance(old, TurnRecord)
    assert (old.summary.start_ms, old.summary.llm_ms, old.summary.tools) == (None, None, [])
    assert old.summary.difference is None
    older = parse_record(orjson.dumps(seen))
    assert isinstance(older, ObservationRecord)
    assert (older.times, older.environment) == ((), None)


def test_the_order_of_a_message_s_keys_is_kept() -> None:
    message = {"role": "user", "zebra": 1, "content": "x", "apple": {"z": 1, "a": 2}}
    record = replace(OBSERVATION, messages=[message])
    again = parse_record(encode_record(record))
    assert isinstance(again, ObservationRecord)
    assert orjson.dumps(again.messages) == orjson.dumps([message])


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.text(st.characters(codec="utf-8")), st.dictionaries(st.sampled_from(["a", "b", "c"]), JSON))
def test_a_message_is_sent_again_with_the_same_bytes(content: str, arguments: dict[str, Any]) -> None:
    """A resumed turn is asked with messages that went through the journal, and its body must be the same."""
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": arguments}}
    message = {"role": "assistant", "content": content, "tool_calls": [call], "tool_call_id": None, "vendor": arguments}
    again = parse_record(encode_record(replace(TURN, message=message)))
    assert isinstance(again, TurnRecord)
    assert orjson.dumps(again.message) == orjson.dumps(message)


def changed(record: JournalRecord, **fields: Any) -> bytes:
    return orjson.dumps({**orjson.loads(encode_record(record)), **fields})


def without(record: JournalRecord, name: str) -> bytes:
    kept = orjson.loads(encode_record(record))
    del kept[name]
    return orjson.dumps(kept)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b'{"kind": "turn"',
        changed(TURN, v=3),
        changed(TURN, kind="obs"),
        changed(TURN, more=1),
        changed(TURN, trainer="somebody"),
        changed(TURN, message={"role": "moderator", "content": "secret"}),
        changed(TURN, entries=[{"op": "sampled"}]),
        changed(TURN, entries=[{"op": "prefill", "ids": "", "after": ""}]),
        changed(OBSERVATION, messages=[{"content": "secret"}]),
        changed(OBSERVATION, planned={"plan": None, "digest": "secret"}),
        changed(OBSERVATION, environment={"steps": [{"place": "secret"}]}),
        changed(ENVIRONMENT, crash="secret"),
        without(ENVIRONMENT, "tools_digest"),
        without(TURN, "summary"),
        without(EDIT, "planned"),
        without(EDIT, "kind"),
    ],
)
def test_what_is_no_record_is_refused_without_its_text(data: bytes) -> None:
    with pytest.raises(JournalUnreadable) as caught:
        parse_record(data)
    assert "secret" not in caught.value.message


@pytest.mark.parametrize("changes", [{"kind": "snapshot"}, {"v": 3}], ids=["kind", "form"])
def test_what_another_release_wrote_is_told_from_what_nobody_can_read(changes: dict[str, Any]) -> None:
    known = orjson.loads(encode_record(TURN))
    with pytest.raises(RecordUnknown) as caught:
        parse_record(orjson.dumps({**known, **changes}))
    assert repr(changes.get("kind", "turn")) in caught.value.message
    with pytest.raises(JournalUnreadable) as unreadable:
        parse_record(orjson.dumps({**known, "message": None}))
    assert not isinstance(unreadable.value, RecordUnknown)


@pytest.mark.parametrize("record", [TURN, OBSERVATION, EDIT], ids=lambda record: record.kind)
def test_the_length_follows_texts_and_ids(record: JournalRecord) -> None:
    assert 0 < record_length(record) < len(encode_record(record))
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "y" * 2000}}
    parts = [{"type": "text", "text": "z" * 3000}]
    messages: list[dict[str, Any]] = [
        {"role": "tool", "content": "x" * 1000},
        {"content": None, "tool_calls": [call]},
        {"content": parts},
    ]
    longer = 0
    for message in messages:
        turn = isinstance(record, TurnRecord)
        longer += record_length(replace(record, **({"message": message} if turn else {"messages": [message]})))
    entries = record_length(replace(record, **({"message": {}} if record is TURN else {"messages": []})))
    assert longer == 6000 + 3 * entries


@pytest.mark.parametrize("record", [TURN, OBSERVATION])
def test_only_a_record_of_another_branch_is_of_a_form_that_older_workers_leave_alone(
    record: TurnRecord | ObservationRecord,
) -> None:
    plain = orjson.loads(encode_record(record))
    assert (plain["v"], "branch" in plain) == (1, False)
    other = replace(record, branch=1)
    named = orjson.loads(encode_record(other))
    assert named == {**plain, "v": 2, "branch": 1}
    assert parse_record(encode_record(other)) == other != record
