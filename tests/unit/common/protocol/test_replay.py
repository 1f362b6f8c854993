"""Records leave out what is empty, keep what release 0.2 wrote, and can be read by it."""

from typing import Any

from pydantic import BaseModel, Field
from tests.support.kept_journals import OF_RELEASE_0_2

from rolloutpool_common.protocol.replay import ReplayRecord, definitions_digest


class RecordOfRelease02(BaseModel):
    """What clients of that release read; the rest of it has defaults."""

    options: dict[str, Any]
    given: int
    tools_digest: str = ""
    turns: list[str] = Field(default_factory=list)
    samples: list[str] = Field(default_factory=list)


def test_empty_fields_are_left_out() -> None:
    record = ReplayRecord(options={}, given=1, tools_digest="d")
    assert record.model_dump_json() == '{"options":{},"given":1,"tools_digest":"d"}'
    kept = record.model_copy(update={"journal": "AA==", "by_text": True})
    assert ReplayRecord.model_validate_json(kept.model_dump_json()) == kept
    assert RecordOfRelease02.model_validate_json(kept.model_dump_json()).given == 1


def test_what_release_0_2_wrote_stays_as_it_is() -> None:
    record = ReplayRecord.model_validate(OF_RELEASE_0_2)
    assert record.journal is None
    assert record.model_dump(mode="json") == OF_RELEASE_0_2


def test_definitions_are_known_by_their_content_and_order() -> None:
    assert definitions_digest([{"a": 1, "b": 2}]) == definitions_digest([{"b": 2, "a": 1}])
    assert definitions_digest([{"a": 1}, {"b": 2}]) != definitions_digest([{"b": 2}, {"a": 1}])
