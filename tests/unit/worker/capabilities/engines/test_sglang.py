"""SGLang's own JSON, as its released source has it and as people have posted it, read by the channel."""

from typing import Any

import orjson
import pytest
from tests.support.conversations import spec_of

from rolloutpool_common.errors import TrainerProtocolError
from rolloutpool_worker.capabilities.engines.reply import Finish, ReplyReader, SampledCall, VersionSpan
from rolloutpool_worker.capabilities.engines.sglang import GENERATE, SglangApi

GENERATED = """
{"text": "…", "output_ids": [5, 6, 9], "prompt_token_ids": [1, 2],
 "meta_info": {"id": "u/3", "finish_reason": {"type": "stop", "matched": 9}, "prompt_tokens": 2, "completion_tokens": 3,
  "cached_tokens": 0, "reasoning_tokens": 0, "num_retractions": 0, "weight_version": "12",
  "weight_versions": [{"version": "12", "start": 0, "end": 3}],
  "output_token_logprobs": [[-0.1, 5, null], [-0.2, 6, null], [-0.3, 9, null]], "output_token_logprobs_length": 3}}
"""
POSTED = """
{"text": "First", "output_ids": [3491, 3019, 553, 3019, 382, 5338], "meta_info": {"id": "80704614f4674319",
 "finish_reason": {"type": "length", "length": 1}, "prompt_tokens": 184, "weight_version": "default",
 "input_token_logprobs": [[null, 382, null]], "output_token_logprobs": [[-0.014046513475477695, 5338, null]],
 "completion_tokens": 1, "cached_tokens": 158, "e2e_latency": 0.0194}}
"""
"""Of an older version, whose `output_ids` begin with ids of the prompt."""


def read(document: Any) -> SampledCall:
    data = document.encode() if isinstance(document, str) else orjson.dumps(document)
    return SglangApi(spec_of(protocol="sglang"), []).read(GENERATE, ReplyReader(data, b"1,2", "turn 1"))


def generated(**meta: Any) -> dict[str, Any]:
    document: dict[str, Any] = orjson.loads(GENERATED)
    document["meta_info"].update(meta)
    return document


def test_a_turn() -> None:
    assert read(GENERATED) == SampledCall([5, 6, 9], [-0.1, -0.2, -0.3], Finish.STOP, (VersionSpan("12", 0, 3),))


def test_ids_that_begin_with_the_prompts_are_noticed() -> None:
    document = orjson.loads(POSTED)
    with pytest.raises(TrainerProtocolError, match="lacks prompt_token_ids"):
        read(document)
    document["prompt_token_ids"] = [1, 2]
    with pytest.raises(TrainerProtocolError, match="not of the output_ids"):
        read(document)
    document["output_ids"] = [5338]
    spans = (VersionSpan("<=default", 0, 1),)
    assert read(document) == SampledCall([5338], [-0.014046513475477695], Finish.LENGTH, spans)


def test_a_last_version_alone_is_an_upper_bound() -> None:
    document = generated()
    del document["meta_info"]["weight_versions"]
    assert read(document).spans == (VersionSpan("<=12", 0, 3),)
    del document["meta_info"]["weight_version"]
    assert read(document).spans == (VersionSpan(None, 0, 3),)


@pytest.mark.parametrize(
    ("entries", "why"),
    [
        ([[-0.1, 5, None], [-0.2, 6, None]], "not of the output_ids"),
        ([[-0.1, 5, None], [-0.2, 7, None], [-0.3, 9, None]], "not of the output_ids"),
        ([[-0.1, 5], [-9999.0, 6], [-0.3, 9]], "at 1"),
        ([[-0.1, 5], [None, 6], [-0.3, 9]], "at 1"),
        ([[-0.1], [-0.2], [-0.3]], "not a list of"),
        ([-0.1, -0.2, -0.3], "not a list of"),
        ("x", "not a list of"),
    ],
)
def test_entries_that_do_not_fit(entries: Any, why: str) -> None:
    with pytest.raises(TrainerProtocolError, match=why):
        read(generated(output_token_logprobs=entries))
