"""Entries come back from JSON, and what no ledger writes is refused."""

import pytest
from pydantic import ValidationError
from tests.support.journals import entry_document, parse_entry

from rolloutpool_common.tokens.entries import (
    Entry,
    ForkEntry,
    SampledEntry,
    SeedEntry,
    TailEntry,
    TextEntry,
)
from rolloutpool_common.tokens.segments import SegmentKind

ENTRIES: tuple[Entry, ...] = (
    SeedEntry(ids="AQAAAA==", after="00"),
    SampledEntry(ids="AQAAAA==", after="00", logprobs="AAAAAAAA4L8=", turn=1, policy_version="v1", train=False),
    TextEntry(ids="AQAAAA==", after="00", kind=SegmentKind.SYNTH_CLOSE, turn=1),
    TailEntry(ids="", after="00", keep=3),
    ForkEntry(ids="AQAAAA==", after="00", keep=0),
)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.op)
def test_an_entry_comes_back_as_it_was(entry: Entry) -> None:
    assert parse_entry(entry_document(entry)) == entry
    assert parse_entry({name: value for name, value in entry_document(entry).items() if value is not None}) == entry


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"op": "prefill", "ids": "", "after": ""},
        {"op": "sampled", "ids": "", "after": ""},
        {"op": "text", "kind": "sampled", "ids": "", "after": "", "turn": 1},
        {"op": "seed", "ids": "", "after": "", "more": 1},
    ],
)
def test_what_no_ledger_writes_is_refused(document: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        parse_entry(document)
