"""What is stored comes back as it was, and a rollout's own fields win over its batch's."""

from typing import Any

import orjson
import pytest

from rolloutpool_common.store.records import COMPRESS_FROM, compress, expand, merge_spec

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
