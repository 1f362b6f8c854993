"""Sums over records: the same for replayed and for new ones."""

from dataclasses import replace
from typing import Any

import pytest
from tests.support.journals import observation_record, turn_record

from rolloutpool_common.protocol.journal import TurnRecord
from rolloutpool_common.protocol.result import Alignment, StopToken
from rolloutpool_common.tokens.entries import ForkEntry, SampledEntry
from rolloutpool_worker.conversation.measures import Measures


def turn(**changes: Any) -> TurnRecord:
    """A turn with these fields of its summary, or of itself."""
    record = turn_record("x")
    own = {name: changes.pop(name) for name in ("entries", "zero_logprobs", "llm_ms") if name in changes}
    return replace(record, summary=record.summary.model_copy(update=changes), **own)


def test_counts_and_times_add_up() -> None:
    measures = Measures()
    measures.add_turn(turn(prompt_tokens=10, sampled_tokens=5, llm_ms=2.0))
    measures.add_observation(replace(observation_record("x"), tools_ms=3.0, tool_calls=2))
    measures.add_turn(turn(prompt_tokens=2, sampled_tokens=1, llm_ms=4.0))
    assert (measures.sampled_tokens, measures.max_context, measures.tool_calls) == (6, 15, 2)
    assert (measures.llm_ms, measures.tools_ms) == (6.0, 3.0)


@pytest.mark.parametrize(
    ("labels", "counted", "alignment"),
    [
        ([], {}, None),
        (["none", "edited"], {}, Alignment.EXACT),
        (["none", "unverified"], {}, Alignment.UNVERIFIED),
        (["none", "glue_rewritten", "glue_rewritten"], {"glue_rewritten": 2}, Alignment.EXACT),
    ],
)
def test_drift_is_counted_by_label(labels: list[str], counted: dict[str, int], alignment: Alignment | None) -> None:
    measures = Measures()
    for label in labels:
        measures.add_turn(turn(drift=label))
    assert (dict(measures.drift), measures.alignment) == (counted, alignment)


def test_a_fork_in_a_turn_s_entries_is_remembered() -> None:
    measures = Measures()
    forked = ForkEntry(ids="", after="", keep=1)
    sampled = SampledEntry(ids="", after="", logprobs="", turn=1)
    measures.add_turn(turn(entries=(forked, sampled), drift="history_shortened"))
    measures.add_turn(turn())
    assert measures.alignment is Alignment.FORKED


@pytest.mark.parametrize(
    ("stops", "zero", "warnings"),
    [
        ([], [], []),
        ([StopToken.SAMPLED], [False], []),
        ([StopToken.WITHHELD, StopToken.ABSENT], [True, True], ["stop_token_withheld", "zero_logprobs"]),
        ([StopToken.WITHHELD, StopToken.SAMPLED], [True, False], []),
        ([StopToken.ABSENT], [False], []),
    ],
)
def test_what_holds_in_every_turn_is_a_warning(stops: list[StopToken], zero: list[bool], warnings: list[str]) -> None:
    measures = Measures()
    for stop, zeros in zip(stops, zero, strict=True):
        measures.add_turn(turn(stop=stop, zero_logprobs=zeros))
    assert measures.warnings() == warnings


@pytest.mark.parametrize("traced", [False, True])
def test_the_trace_is_kept_where_it_was_asked_for(traced: bool) -> None:
    measures = Measures(traced=traced)
    measures.add_turn(turn(prompt_tokens=10, mask_sent=None))
    observation = replace(observation_record("38"), tool_calls=1)
    measures.add_observation(observation)
    assert len(measures.trace) == traced
    if traced:
        (entry,) = measures.trace
        assert entry["llm_request"] == {"prompt_length": 10, "response_mask_len": None}
        assert entry["tool_results"] == observation.messages
