"""What is cut out of a stored result is what `to_v1` makes of it, byte for byte, or nothing is cut."""

import struct
from typing import Any

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.examples import examples
from tests.support.results import LONG_SAMPLE, completed

from rolloutpool_common.outcomes import FinishReason, RolloutStatus
from rolloutpool_common.protocol.result import Alignment, RolloutResult, Spans, encode_result
from rolloutpool_common.protocol.v1.response import FINISH, V1Result, to_v1
from rolloutpool_common.store.records import compress, expand, finish_fields, read_end
from rolloutpool_common.store.rows import row_of
from rolloutpool_common.store.v1_answers import V1Cut

TRAPS = [
    *(
        ',"messages":[',
        '],"samples":[{"prompt_ids":[',
        '],"alignment":',
        ',"response_tokens":',
        '\\"',
        "\x18",
        "é\U0001f600",
    ),
    *("messages", "samples", "prompt_ids", "alignment", "spans", "total_ms", "num_llm_calls", "batch_id", "%b"),
]
TEXTS = st.one_of(st.sampled_from(TRAPS), st.text(st.characters(codec="utf-8"), max_size=8))
OBJECTS = st.recursive(
    st.one_of(TEXTS, st.none(), st.booleans(), st.integers(-(2**63), 2**63), st.floats(allow_nan=False)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=6,
)
# What a policy may write down so that the wrong bytes are found.
FORGED = {
    "x": 1,
    "messages": [1],
    "samples": [{"prompt_ids": [7]}],
    "alignment": "exact",
    "batch_id": "b",
    "spans": {"a": 1},
}
DICTS = st.one_of(st.dictionaries(TEXTS, OBJECTS, max_size=3), st.just(FORGED))
CALLS = st.fixed_dictionaries(
    {
        "id": st.just("call_1"),
        "function": st.fixed_dictionaries({"name": st.just("add"), "arguments": st.one_of(TEXTS, DICTS)}),
    }
)
MESSAGES = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "tool", "system"]), "content": st.one_of(st.none(), TEXTS)},
    optional={"tool_calls": st.lists(CALLS, max_size=2), "vendor": OBJECTS, "messages": OBJECTS, "samples": OBJECTS},
)


def result(**changes: Any) -> RolloutResult:
    fields: dict[str, Any] = {
        "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}],
        "samples": [LONG_SAMPLE],
        "alignment": Alignment.EXACT,
        "num_llm_calls": 2,
        "num_tool_calls": 3,
        "prompt_tokens": 50,
        "response_tokens": 7,
        "spans": Spans(total_ms=10.5, llm_ms=5.25, tools_ms=2.0),
    }
    return completed(**{**fields, **changes})


async def stored(made: RolloutResult) -> bytes:
    found = (await finish_fields(made, None))[0]
    assert isinstance(found, bytes)
    return found


def answer_of(document: bytes) -> bytes:
    made = to_v1(V1Result.model_validate_json(document), tokenizer_name="t", timeout_seconds=1.0)
    return made.model_dump_json().encode()


@settings(max_examples=examples(60, 400), deadline=None)
@given(
    messages=st.lists(MESSAGES, min_size=1, max_size=4),
    metadata=DICTS,
    rollout_id=TEXTS.filter(bool),
    reason=st.sampled_from(list(FINISH)),
    counts=st.tuples(*[st.integers(0, 2**40)] * 4),
    spans=st.tuples(*[st.floats(0, 1e300)] * 3),
)
async def test_what_is_cut_is_the_answer(
    messages: list[Any], metadata: Any, rollout_id: str, reason: FinishReason, counts: Any, spans: Any
) -> None:
    names = ("num_llm_calls", "num_tool_calls", "prompt_tokens", "response_tokens")
    made = result(
        messages=messages,
        metadata=metadata,
        rollout_id=rollout_id,
        finish_reason=reason,
        spans=Spans(total_ms=spans[0], llm_ms=spans[1], tools_ms=spans[2]),
        **dict(zip(names, counts, strict=True)),
    )
    kept = await stored(made)
    document = encode_result(made)
    # An older reader sees the result alone.
    assert expand(kept) == zstandard.decompress(kept) == document
    end = read_end(kept)
    assert end.result == document
    assert end.answer in (None, answer_of(document))
    forgeable = b"".join(
        mark for mark in (b',"messages":[', b'],"samples":[{"prompt_ids":[') if document.count(mark) > 1
    )
    assert (end.answer is None) == bool(forgeable)


@pytest.mark.parametrize(
    "changes",
    [
        {"status": RolloutStatus.FAILED, "finish_reason": FinishReason.ERROR},
        {"status": RolloutStatus.CANCELLED, "finish_reason": FinishReason.CANCELLED},
        {"trace": [{"turn": 1}]},
        {"samples": []},
        {"rollout_id": "r" * 300},
    ],
)
async def test_of_others_nothing_is_cut(changes: dict[str, Any]) -> None:
    made = result(**changes)
    end = read_end(await stored(made))
    assert end.answer is None
    assert end.result == encode_result(made)


async def test_the_results_of_batches_and_of_older_workers_have_no_cut() -> None:
    made = result()
    of_batch = (await finish_fields(made, row_of))[0]
    assert of_batch == compress(encode_result(made))
    assert read_end(compress(encode_result(made))).answer is None
    assert read_end(b'{"short":1}') == (None, b'{"short":1}')


async def test_the_places_take_few_bytes_and_a_frame_of_another_form_is_ignored() -> None:
    plain = compress(encode_result(result()))
    kept = await stored(result())
    frame = kept[len(plain) :]
    assert kept.startswith(plain)
    assert len(frame) == 47
    assert V1Cut.parse(frame) is not None
    for other in (b"", frame[:-1], frame + b"\0", b"\x51" + frame[1:], frame[:4] + struct.pack("<I", 38) + frame[8:-1]):
        assert V1Cut.parse(other) is None
        assert read_end(plain + other).answer is None
