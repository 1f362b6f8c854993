"""vLLM's own JSON, as its documents and its released source have it, read by the channel."""

from typing import Any

import orjson
import pytest
from tests.support.conversations import spec_of

from rolloutpool_common.errors import TrainerProtocolError
from rolloutpool_worker.capabilities.engines.reply import Finish, ReplyReader, SampledCall, VersionSpan
from rolloutpool_worker.capabilities.engines.vllm import COMPLETIONS, GENERATE, VllmApi

GENERATED = """
{"output_mode": "tokens", "request_id": "generate-tokens-42", "model": "m", "created": 0,
 "usage": {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}, "prompt_token_ids": [1, 2],
 "choices": [{"index": 0, "token_ids": [5, 6, 9], "finish_reason": "stop", "stop_reason": 9,
   "logprobs": {"content": [{"token_id": 5, "logprob": -0.1, "rank": 1, "top_logprobs": []},
                            {"token_id": 6, "logprob": -0.2, "rank": 1,
                             "top_logprobs": [{"token_id": 6, "logprob": -0.2, "rank": 1}]},
                            {"token_id": 9, "logprob": -0.3, "rank": 2, "top_logprobs": []}]},
   "weight_versions": [{"version": "default", "start": 0, "end": 3}],
   "routed_experts": null, "sampling_mask": null}]}
"""
OF_ITS_DOCUMENT = '[{"version": "v7", "start": 0, "end": 57}, {"version": "v8", "start": 57, "end": 128}]'
"""The example of weight versions on its page about tokens in and out."""
COMPLETED = """
{"id": "cmpl-1", "object": "text_completion", "created": 1700000000, "model": "m", "system_fingerprint": null,
 "choices": [{"index": 0, "text": " Paris.", "logprobs": {"text_offset": [0, 6], "token_logprobs": [-0.5, -0.25],
   "tokens": [" Paris", "."], "top_logprobs": [{" Paris": -0.5}, {".": -0.25}]}, "finish_reason": "length",
   "stop_reason": null, "token_ids": [12095, 13], "prompt_token_ids": [1, 2], "prompt_logprobs": null,
   "weight_versions": [{"version": "7", "start": 0, "end": 2}]}],
 "usage": {"prompt_tokens": 2, "total_tokens": 4, "completion_tokens": 2, "prompt_tokens_details": null}}
"""


def api(**fields: Any) -> VllmApi:
    return VllmApi(spec_of(protocol="vllm", **fields), [9])


def read(path: str, document: Any) -> SampledCall:
    data = document.encode() if isinstance(document, str) else orjson.dumps(document)
    return api().read(path, ReplyReader(data, b"1,2", "turn 1"))


def generated(**changes: Any) -> dict[str, Any]:
    document: dict[str, Any] = orjson.loads(GENERATED)
    document["choices"][0].update(changes)
    return document


def test_a_generated_turn() -> None:
    spans = (VersionSpan("default", 0, 3),)
    assert read(GENERATE, GENERATED) == SampledCall([5, 6, 9], [-0.1, -0.2, -0.3], Finish.STOP, spans)


def test_a_turn_over_a_weight_update() -> None:
    ids = list(range(128))
    content = [{"token_id": i, "logprob": -0.5, "rank": 1, "top_logprobs": []} for i in ids]
    spans = orjson.loads(OF_ITS_DOCUMENT)
    found = read(GENERATE, generated(token_ids=ids, logprobs={"content": content}, weight_versions=spans))
    assert found.spans == (VersionSpan("v7", 0, 57), VersionSpan("v8", 57, 128))
    with pytest.raises(TrainerProtocolError, match="weight_versions end at 128 of 127"):
        read(GENERATE, generated(token_ids=ids[:-1], logprobs={"content": content[:-1]}, weight_versions=spans))


def test_older_versions_name_the_id_in_the_tokens_text_and_send_no_versions() -> None:
    content: list[dict[str, Any]] = [
        {"token": f"token_id:{i}", "logprob": -0.5, "bytes": None, "top_logprobs": []} for i in (5, 6, 9)
    ]
    document = generated(logprobs={"content": content}, weight_versions=None)
    del document["output_mode"]
    assert read(GENERATE, document).spans == (VersionSpan(None, 0, 3),)
    content[1]["token"] = "token_id:7"
    with pytest.raises(TrainerProtocolError, match="not of the sampled ids"):
        read(GENERATE, document)


def test_an_abort_with_ids_needs_all_that_a_whole_turn_needs() -> None:
    assert read(GENERATE, generated(finish_reason="abort")).finish is Finish.ABORT
    with pytest.raises(TrainerProtocolError):
        read(GENERATE, generated(finish_reason="abort", logprobs=None))


def test_completions_have_their_ids_where_they_were_asked_for() -> None:
    document = orjson.loads(COMPLETED)
    for name in ("token_ids", "prompt_token_ids"):
        without = orjson.loads(COMPLETED)
        without["choices"][0][name] = None
        with pytest.raises(TrainerProtocolError):
            read(COMPLETIONS, without)
    document["choices"][0]["logprobs"]["token_logprobs"] = [None, -0.25]
    with pytest.raises(TrainerProtocolError, match="at 0"):
        read(COMPLETIONS, document)
