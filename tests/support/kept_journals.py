"""Results that carry a journal, made as a worker makes them, and results as release 0.2 wrote them."""

from collections.abc import Sequence
from typing import Any

from rolloutpool_common.protocol.journal import JournalRecord
from rolloutpool_common.protocol.kept_journal import keep_journal, read_journal
from rolloutpool_common.protocol.replay import ReplayRecord
from rolloutpool_common.protocol.result import RolloutResult

OF_RELEASE_0_2: dict[str, Any] = {
    "options": {"tokenizer_name": "rolloutpool/tiny"},
    "given": 2,
    "tools_digest": "7a39e92993ae1e8c5e83705bb2cdf0a3",
    "turns": ["0000000000000001"],
    "samples": ["4b958e414511a48c394c51d63c2115c0"],
    "edits": [{"turn": 1, "before": [{"role": "user", "content": "x"}], "kept": 1}],
}
"""A record of that release: digests, and what an edit took out of the transcript."""


def carrying(
    result: RolloutResult, records: Sequence[JournalRecord], submitted: Sequence[dict[str, Any]], **fields: Any
) -> RolloutResult:
    """The result with this journal; `fields` are the record's other ones."""
    made = result.model_copy(deep=True)
    journal = keep_journal(records, submitted, made)
    made.replay = ReplayRecord(**{"options": {}, "given": len(submitted), **fields, "journal": journal})
    return made


def kept_again(result: RolloutResult, original: RolloutResult, records: Sequence[JournalRecord] = ()) -> RolloutResult:
    """A changed result as if its worker had written it so: with the original's journal, or these records."""
    assert original.replay is not None
    kept = read_journal(original)
    return carrying(result, records or kept.records, kept.submitted, **dict(original.replay))
