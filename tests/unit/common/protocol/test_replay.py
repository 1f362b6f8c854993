"""Records are short, and digests notice each change."""

import pytest

from rolloutpool_common.protocol.replay import ReplayRecord, definitions_digest, turn_digest

MESSAGE = {"role": "assistant", "content": "38", "tool_calls": None, "tool_call_id": None}


def test_empty_fields_are_left_out() -> None:
    record = ReplayRecord(options={}, given=1, tools_digest="d")
    assert record.model_dump_json() == '{"options":{},"given":1,"tools_digest":"d","turns":[],"samples":[]}'
    assert ReplayRecord.model_validate_json(record.model_dump_json()) == record


@pytest.mark.parametrize(
    ("message", "parts"),
    [
        ({**MESSAGE, "content": "39"}, [("AA", "BB")]),
        (MESSAGE, [("AB", "BB")]),
        (MESSAGE, [("AA", "BC")]),
        (MESSAGE, [("AA", "")]),
        (MESSAGE, [("A", "A"), ("", "BB")]),
        (MESSAGE, []),
    ],
)
def test_a_turn_s_digest_notices(message: dict[str, object], parts: list[tuple[str, str]]) -> None:
    digest = turn_digest(MESSAGE, [("AA", "BB")])
    assert len(digest) == 16
    assert digest == turn_digest(dict(MESSAGE), [("AA", "BB")])
    assert digest != turn_digest(message, parts)


def test_definitions_are_known_by_their_content_and_order() -> None:
    assert definitions_digest([{"a": 1, "b": 2}]) == definitions_digest([{"b": 2, "a": 1}])
    assert definitions_digest([{"a": 1}, {"b": 2}]) != definitions_digest([{"b": 2}, {"a": 1}])
