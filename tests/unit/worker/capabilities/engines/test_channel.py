"""The channel to an engine: what is sent, what is refused, and what is repeated."""

import re
from typing import Any

import pytest
from tests.support.engine_channels import BOTH, IDS, PROMPT, Channels, prompt, versions
from tests.support.imitated_engine import Refusal
from tests.support.sglang_server import sglang_server
from tests.support.vllm_server import COMPLETIONS, GENERATE, vllm_server

from rolloutpool_common.errors import TrainerProtocolError, TrainerStatusError
from rolloutpool_common.outcomes import Category
from rolloutpool_common.rendering import ChatTokenizer
from rolloutpool_common.store import Store
from rolloutpool_worker.capabilities.engines.engines import KEEP_SECONDS, SILENCE, Engines


async def test_what_vllm_is_sent(store: Store, channels: Channels, tokenizer: ChatTokenizer) -> None:
    async with vllm_server(tokenizer, IDS) as engine:
        engine.version, engine.key = "12", "engine-key"
        options: dict[str, Any] = {
            "sampling_params": {"temperature": 0.7, "top_k": 5},
            "callback_api_key": None,
            "model": "policy",
        }
        channel = await channels.to(store, engine, **options, group="b/g")
        with pytest.raises(TrainerStatusError) as refused:
            await channel.sample(1, prompt())
        assert refused.value.http_status == 401
        engine.key = None
        await channel.sample(1, prompt())
    asked = engine.asked[-1]
    assert asked.path == GENERATE
    assert asked.document == {
        "token_ids": PROMPT,
        "model": "policy",
        "request_id": f"{channels.uid}/1.2.2",
        "stream": False,
        "cache_salt": "12",
        "return_token_ids": True,
        "sampling_params": {
            "temperature": 0.7,
            "top_p": 1.0,
            "top_k": 5,
            "max_tokens": 100,
            "stop_token_ids": [9],
            "logprobs": 1,
            "detokenize": False,
        },
    }
    assert asked.headers["x-session-id"] == asked.headers["x-smg-routing-key"] == "b/g"


async def test_a_vllm_that_was_not_started_for_it_is_asked_for_completions(
    store: Store, channels: Channels, tokenizer: ChatTokenizer
) -> None:
    async with vllm_server(tokenizer, IDS, IDS) as engine:
        engine.scale_out, engine.version = False, "12"
        channel = await channels.to(store, engine)
        first = await channel.sample(1, prompt())
        second = await channel.sample(2, prompt())
    assert versions(first) == versions(second) == [("12", IDS)]
    assert [(asked.path, asked.status) for asked in engine.asked] == [
        (GENERATE, 403),
        (COMPLETIONS, 200),
        (COMPLETIONS, 200),
    ]
    assert engine.asked[-1].document == {
        "prompt": PROMPT,
        "request_id": f"{channels.uid}/2.2.3",
        "session_id": channels.uid,
        "stream": False,
        "cache_salt": "12",
        "temperature": 1.0,
        "top_p": 1.0,
        "stop_token_ids": [9],
        "max_tokens": 100,
        "logprobs": 0,
        "return_token_ids": True,
        "return_weight_versions": True,
    }
    assert channels.pauses == []


async def test_what_sglang_is_sent(store: Store, channels: Channels, tokenizer: ChatTokenizer) -> None:
    async with sglang_server(tokenizer, IDS) as engine:
        engine.version = "12"
        await (await channels.to(store, engine, "sglang", sampling_params={"stop": ["\n"]})).sample(3, prompt())
    (asked,) = engine.asked
    assert asked.document == {
        "input_ids": PROMPT,
        "rid": f"{channels.uid}/3.2.1",
        "sampling_params": {
            "temperature": 1.0,
            "top_p": 1.0,
            "stop": ["\n"],
            "max_new_tokens": 100,
            "stop_token_ids": [9],
            "skip_special_tokens": False,
        },
        "return_logprob": True,
        "logprob_start_len": -1,
        "return_prompt_token_ids": True,
        "session_id": channels.uid,
        "cache_salt": "12",
        "stream": False,
    }


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (
            {"error": {"message": "no such field", "type": "BadRequestError", "param": None, "code": 400}},
            "no such field",
        ),
        ({"object": "error", "message": "no such field", "type": "BadRequestError"}, "no such field"),
        # Nothing shows that these are an engine's.
        ({"error": "no such field"}, "answered 400$"),
        ({"detail": "no such field"}, "answered 400$"),
        (b"<html>", "answered 400$"),
    ],
)
async def test_a_refusal_says_what_the_engine_says(
    store: Store, channels: Channels, tokenizer: ChatTokenizer, body: Any, words: str
) -> None:
    async with sglang_server(tokenizer, IDS) as engine:
        engine.refusals = [Refusal(400, body)]
        with pytest.raises(TrainerStatusError) as refused:
            await (await channels.to(store, engine, "sglang")).sample(1, prompt())
    assert re.search(words, refused.value.message)
    assert not refused.value.retryable


async def test_an_unprocessable_request_is_not_about_masks(
    store: Store, channels: Channels, tokenizer: ChatTokenizer
) -> None:
    async with vllm_server(tokenizer, IDS) as engine:
        engine.refusals = [Refusal(422, {"detail": "x"})]
        with pytest.raises(TrainerStatusError) as refused:
            await (await channels.to(store, engine)).sample(1, prompt())
    assert refused.value.category is Category.TRAINER_CLIENT_ERROR


@BOTH
async def test_failures_are_repeated_because_an_engine_keeps_nothing(
    store: Store, channels: Channels, tokenizer: ChatTokenizer, protocol: str, server: Any
) -> None:
    async with server(tokenizer, IDS) as engine:
        mangled = Refusal(200, b'{"choices": [HTTP/1.1 200 OK')
        of_two = Refusal(200, {"choices": [], "meta_info": {}})
        engine.refusals = [Refusal(500, {"error": {"message": "EngineDeadError"}}), Refusal(502, b""), mangled, of_two]
        turn = await (await channels.to(store, engine, protocol, attempts=5)).sample(1, prompt())
        assert (turn.ids, len(channels.pauses)) == (IDS, 4)
        engine.refusals = [Refusal(500, {})] * 3
        with pytest.raises(TrainerStatusError) as failed:
            await (await channels.to(store, engine, protocol)).sample(1, prompt())
    assert failed.value.retryable


def _set(reply: dict[str, Any], **values: Any) -> None:
    """Sets these keys, wherever the reply has them."""
    for holder in (reply, *reply.get("choices", ()), reply.get("meta_info", {})):
        for name, value in values.items():
            if name in holder:
                holder[name] = value


@BOTH
@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"token_ids": IDS[1:], "output_ids": IDS[1:]}, "not of the"),
        ({"prompt_token_ids": None}, "lacks prompt_token_ids"),
        ({"prompt_token_ids": [1]}, "sent were 3"),
        ({"weight_versions": [{"version": "1", "start": 0, "end": 3}]}, "weight_versions end at 3 of 8"),
        ({"logprobs": None, "output_token_logprobs": None}, "logprob"),
        ({"logprobs": {"content": "x"}, "output_token_logprobs": "x"}, "not a list"),
        ({"finish_reason": "tool_calls"}, "finish_reason"),
        ({"finish_reason": {"type": "timeout"}}, "finish_reason"),
        ({"choices": [], "meta_info": []}, "one choice|not an object"),
    ],
)
async def test_a_reply_that_proves_too_little_is_refused(
    store: Store,
    channels: Channels,
    tokenizer: ChatTokenizer,
    protocol: str,
    server: Any,
    values: dict[str, Any],
    why: str,
) -> None:
    async with server(tokenizer, IDS) as engine:
        engine.change = lambda reply: _set(reply, **values)
        with pytest.raises(TrainerProtocolError, match=why):
            await (await channels.to(store, engine, protocol)).sample(1, prompt())


@BOTH
async def test_more_ids_than_were_asked_for_are_refused(
    store: Store, channels: Channels, tokenizer: ChatTokenizer, protocol: str, server: Any
) -> None:
    async with server(tokenizer, IDS, IDS) as engine:
        channel = await channels.to(store, engine, protocol, sampling_params={"max_tokens": 4})
        sample = engine.sample
        engine.sample = lambda name, ids, most: sample(name, ids, 100)
        with pytest.raises(TrainerProtocolError, match="8 ids were sampled, 4 were asked for"):
            await channel.sample(1, prompt())


@pytest.mark.parametrize(
    ("engine_says", "first", "salt"),
    [
        ("12", None, "12"),
        ("12", "11", "11"),
        ("default", None, None),
        ("12", "default", None),
        ("12", "<=11", None),
        (None, None, None),
        ("x" * 2000, None, "x" * 1024),
    ],
)
async def test_the_salt_is_the_version_at_the_rollouts_start(
    store: Store,
    channels: Channels,
    tokenizer: ChatTokenizer,
    engine_says: str | None,
    first: str | None,
    salt: str | None,
) -> None:
    async with vllm_server(tokenizer, IDS) as engine:
        engine.version, engine.tells_version = engine_says or "1", engine_says is not None
        await (await channels.to(store, engine)).sample(1 if first is None else 2, prompt(version=first))
    assert engine.salts == [channels.uid if salt is None else salt]


@BOTH
@pytest.mark.parametrize(
    "refusal",
    [Refusal(502, b"<html>"), Refusal(503, b"{}"), Refusal(200, b"<html>"), Refusal(200, b'{"weight_version": "1')],
    ids=["502", "503", "a page", "half an answer"],
)
async def test_one_lost_question_for_the_weights_is_no_answer(
    store: Store, channels: Channels, tokenizer: ChatTokenizer, protocol: str, server: Any, refusal: Refusal
) -> None:
    seen: list[str | None] = []

    async def gate(*, midway: bool = False, weights: str | None = None) -> bool:
        seen.append(weights)
        return False

    async with server(tokenizer, IDS) as engine:
        engine.version, engine.version_refusals = "12", [refusal]
        await (await channels.to(store, engine, protocol, before_call=gate)).sample(1, prompt())
    assert (seen, len(channels.pauses)) == (["12"], 1)
    asked = engine.asked[0].document
    assert asked["cache_salt"] == "12"


@BOTH
@pytest.mark.parametrize("status", [403, 404, 405])
async def test_an_engine_that_has_no_such_path_does_not_tell_and_holds_nobody_up(
    store: Store, channels: Channels, tokenizer: ChatTokenizer, protocol: str, server: Any, status: int
) -> None:
    seen: list[str | None] = []
    uids: list[str] = []
    now = 0.0
    channels.engines = Engines(lambda: now)

    async def gate(*, midway: bool = False, weights: str | None = None) -> bool:
        seen.append(weights)
        return False

    async with server(tokenizer, IDS) as engine:
        engine.version, engine.version_refusals = "12", [Refusal(status, b"{}")]
        for _ in range(2):
            await (await channels.to(store, engine, protocol, before_call=gate)).sample(1, prompt())
            uids.append(channels.uid)
            # After a question that has failed, the next rollout would ask again, and be told.
            now = SILENCE.longest_s + 1
    assert now < KEEP_SECONDS
    assert (seen, channels.pauses) == ([None, None], [])
    assert [asked.document["cache_salt"] for asked in engine.asked] == uids
