"""What is stored comes back as it was, and a rollout's own fields win over its batch's."""

import threading
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.support.journals import observation_record

from rolloutpool_common.outcomes import FinishReason, RolloutStatus
from rolloutpool_common.protocol.journal import encode_record
from rolloutpool_common.protocol.options import RolloutSpec
from rolloutpool_common.protocol.result import RolloutResult
from rolloutpool_common.store import records
from rolloutpool_common.store.records import (
    COMPRESS_FROM,
    LONG_RECORD,
    LONG_RESULT,
    compress,
    expand,
    finish_fields,
    journal_texts,
    merge_spec,
)
from rolloutpool_common.tokens.ledger import TokenLedger

BASE: dict[str, Any] = {
    "server_url": "http://h",
    "tokenizer_name": "t",
    "messages": [{"role": "user", "content": "shared"}],
    "sampling_params": {"temperature": 0.1, "seed": 1},
    "metadata": {"a": 1, "b": {"x": 1}},
    "max_turns": 5,
}


@pytest.mark.parametrize("size", [0, 1, COMPRESS_FROM - 3, COMPRESS_FROM - 2, COMPRESS_FROM, 100_000])
def test_values_of_any_size_come_back(size: int) -> None:
    value = "x" * size
    data = orjson.dumps({"v": value})
    stored = compress(data)
    assert expand(stored) == data
    assert len(stored) <= COMPRESS_FROM or size < COMPRESS_FROM or len(stored) < size


def test_only_what_is_large_is_compressed() -> None:
    small, large = b"{" + b" " * (COMPRESS_FROM - 3) + b"}", b"{" + b" " * (COMPRESS_FROM - 2) + b"}"
    assert compress(small) == small
    assert compress(large)[:1] != b"{"
    assert expand(compress(large)) == large


def test_own_fields_win_and_two_of_them_key_by_key() -> None:
    own = {"max_turns": 7, "sampling_params": {"temperature": 0.9}, "metadata": {"b": {"y": 2}}, "rollout_id": "mine"}
    for shared, overrides in ((BASE, own), (orjson.dumps(BASE), orjson.dumps(own))):
        spec = merge_spec(shared, overrides, uid="b-0")
        assert (spec.rollout_id, spec.max_turns) == ("mine", 7)
        assert (spec.sampling_params.temperature, spec.sampling_params.extra()) == (0.9, {"seed": 1})
        assert spec.metadata == {"a": 1, "b": {"y": 2}}


def test_the_uid_serves_where_there_is_no_name() -> None:
    assert merge_spec(BASE, {}, uid="b-0").rollout_id == "b-0"
    assert BASE["metadata"] == {"a": 1, "b": {"x": 1}}


SHARED = st.fixed_dictionaries(
    {"tokenizer_name": st.just("t"), "sampling_params": st.sampled_from([{}, {"temperature": 0.5}])},
    optional={
        "server_url": st.just("http://h"),
        "messages": st.just(BASE["messages"]),
        "metadata": st.sampled_from([{}, {"a": 1}]),
        "max_turns": st.sampled_from([3, -1]),
        "v1": st.just(True),
    },
)
OWN = st.fixed_dictionaries(
    {},
    optional={
        "messages": st.sampled_from([[{"role": "user", "content": "own", "name": "n"}], [], [{"role": "x"}], None]),
        "rollout_id": st.sampled_from(["r", None, 5]),
        "group": st.sampled_from(["g", None]),
        "server_url": st.sampled_from(["http://i", None]),
        "metadata": st.just({"b": 2}),
        "sampling_params": st.just({"top_p": 0.5}),
    },
)


@given(SHARED, OWN)
def test_what_a_batch_shares_is_validated_once_and_comes_to_the_same(
    shared: dict[str, Any], own: dict[str, Any]
) -> None:
    def made(*fields: Any) -> RolloutSpec | None:
        try:
            return merge_spec(*fields, uid="b-0")
        except ValidationError:
            return None

    expected = made(shared, own)
    for _ in range(2):
        found = made(orjson.dumps(shared), orjson.dumps(own))
        assert found == expected
        if found is not None and expected is not None:
            assert found.model_dump() == expected.model_dump()
            # A tool may do this; no other rollout is to see it.
            found.metadata["spoiled"] = True


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[threading.Thread]:
    """The threads in which something is compressed."""
    found: list[threading.Thread] = []

    def noted(data: bytes) -> bytes:
        found.append(threading.current_thread())
        return compress(data)

    monkeypatch.setattr(records, "compress", noted)
    return found


@pytest.mark.parametrize(("ids", "in_thread"), [(10, False), (LONG_RESULT + 1, True)])
async def test_a_long_result_is_written_off_the_loop(
    ids: int, in_thread: bool, threads: list[threading.Thread]
) -> None:
    ledger = TokenLedger()
    ledger.seed([7] * ids)
    ledger.append_sampled([5, 6], [-0.5, -0.25], turn=1)
    result = RolloutResult(
        uid="u",
        rollout_id="r",
        batch_id="b",
        index=0,
        status=RolloutStatus.COMPLETED,
        finish_reason=FinishReason.STOP,
        samples=ledger.samples(),
        num_llm_calls=1,
    )
    data, row, *counts = await finish_fields(result, lambda given: given.uid.encode() * 2)
    assert row == b"uu"
    assert (threads[0] is not threading.main_thread()) == in_thread
    assert isinstance(data, bytes)
    assert RolloutResult.model_validate_json(expand(data)) == result
    assert counts == ["sampled", 2, "tokens", ids + 2, "turns", 1]
    assert (await finish_fields(result, None))[1] == b""


@pytest.mark.parametrize(("characters", "in_thread"), [(10, False), (LONG_RECORD, True)])
async def test_a_long_record_is_written_off_the_loop_and_the_same(
    characters: int, in_thread: bool, threads: list[threading.Thread]
) -> None:
    journal = [observation_record("a"), observation_record("x" * characters)]
    assert await journal_texts(journal) == [compress(encode_record(record)) for record in journal]
    assert (threads[0] is not threading.main_thread()) == in_thread
    assert await journal_texts([]) == []
