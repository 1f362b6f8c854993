"""Journal records as small as they can be, told apart by a number, and the ledger's entries read from JSON."""

from collections.abc import Iterable
from typing import Any

import orjson
from pydantic import TypeAdapter

from rolloutpool_common.protocol.journal import (
    MaskPlan,
    ObservationRecord,
    PlannedTurn,
    TrainerKind,
    TurnRecord,
)
from rolloutpool_common.protocol.result import StopToken, TurnSummary
from rolloutpool_common.tokens.entries import Entry

_ENTRY: TypeAdapter[Entry] = TypeAdapter(Entry)


def parse_entry(document: dict[str, Any]) -> Entry:
    """The entry that `entry_document` came from; raises pydantic's `ValidationError`."""
    return _ENTRY.validate_python(document)


def entry_document(entry: Entry) -> dict[str, Any]:
    """An entry as it stands in a record's JSON."""
    document: dict[str, Any] = orjson.loads(orjson.dumps(entry, default=vars))
    return document


def turn_record(n: int | str) -> TurnRecord:
    """A turn in which the policy said `n`."""
    summary = TurnSummary(
        turn=1,
        prompt_tokens=3,
        sampled_tokens=1,
        mask_sent=None,
        finish_reason="stop",
        drift="none",
        tool_calls=0,
        stop=StopToken.SAMPLED,
    )
    return TurnRecord(
        message={"role": "assistant", "content": str(n), "tool_calls": None, "tool_call_id": None},
        entries=(),
        trainer=TrainerKind.UNKNOWN,
        zero_logprobs=False,
        summary=summary,
        llm_ms=1.5,
    )


def observation_record(n: int | str) -> ObservationRecord:
    """An observation in which the user said `n`."""
    return ObservationRecord(
        messages=[{"role": "user", "content": str(n), "tool_calls": None, "tool_call_id": None}],
        entries=(),
        planned=PlannedTurn(MaskPlan((3,), 3, None), "00" * 16),
        tools_ms=0.0,
        tool_calls=0,
    )


def untimed(turns: Iterable[TurnSummary]) -> list[dict[str, Any]]:
    """What is reported of turns, without their times, which no two runs have in common."""
    return [
        {**turn.model_dump(exclude={"start_ms", "llm_ms"}), "tools": [(tool.name, tool.ok) for tool in turn.tools]}
        for turn in turns
    ]
