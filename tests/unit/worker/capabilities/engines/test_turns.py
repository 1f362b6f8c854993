"""A turn over aborts, updates and pauses of its engine, and within its context."""

import asyncio
from typing import Any

import pytest
from tests.support.engine_channels import BOTH, IDS, PROMPT, Channels, prompt, versions
from tests.support.imitated_engine import Refusal
from tests.support.sglang_server import sglang_server
from tests.support.vllm_server import vllm_server

from rolloutpool_common.errors import RequestFault, RolloutError, TrainerStatusError
from rolloutpool_common.rendering import ChatTokenizer
from rolloutpool_common.security.targets import Targets
from rolloutpool_common.store import Store
from rolloutpool_worker.capabilities.engines.engines import Engines
from rolloutpool_worker.capabilities.engines.reply import Finish
from rolloutpool_worker.policy.http1 import Http1Client
from rolloutpool_worker.policy.resolver import Resolver


@BOTH
async def test_an_aborted_turn_goes_on_from_what_it_has(
    store: Store, channels: Channels, tokenizer: ChatTokenizer, protocol: str, server: Any
) -> None:
    async with server(tokenizer, IDS) as engine:
        engine.version = "12"
        engine.abort_after(3, 2)
        channel = await channels.to(store, engine, protocol, sampling_params={"max_tokens": 8})

        async def update(asked: Any) -> None:
            engine.version = str(11 + len(engine.asked))

        engine.before = update
        turn = await channel.sample(1, prompt())
    assert versions(turn) == [("12", IDS[:3]), ("13", IDS[3:5]), ("14", IDS[5:])]
    assert (turn.finish, turn.aborts) == (Finish.STOP, 2)
    name = "token_ids" if protocol == "vllm" else "input_ids"
    assert [asked.document[name] for asked in engine.asked] == [PROMPT, PROMPT + IDS[:3], PROMPT + IDS[:5]]
    budgets = [asked.document["sampling_params"] for asked in engine.asked]
    assert [b.get("max_tokens", b.get("max_new_tokens")) for b in budgets] == [8, 5, 3]
    assert len({asked.document.get("request_id", asked.document.get("rid")) for asked in engine.asked}) == 3
    assert len(set(engine.salts)) == 1
    assert channels.pauses == []


@BOTH
async def test_an_update_inside_a_call_is_a_border_as_well(
    store: Store, channels: Channels, tokenizer: ChatTokenizer, protocol: str, server: Any
) -> None:
    async with server(tokenizer, IDS) as engine:
        engine.version = "12"
        engine.update_at(5, "13")
        turn = await (await channels.to(store, engine, protocol)).sample(1, prompt())
    assert versions(turn) == [("12", IDS[:5]), ("13", IDS[5:])]
    assert turn.aborts == 0


@BOTH
async def test_a_turn_that_is_aborted_at_its_budget_has_ended(
    store: Store, channels: Channels, tokenizer: ChatTokenizer, protocol: str, server: Any
) -> None:
    async with server(tokenizer, IDS) as engine:
        engine.abort_after(4)
        channel = await channels.to(store, engine, protocol, sampling_params={"max_tokens": 4})
        turn = await channel.sample(1, prompt())
    assert (turn.ids, turn.finish, len(engine.asked)) == (IDS[:4], Finish.LENGTH, 1)


@BOTH
async def test_an_engine_that_aborts_and_aborts_is_given_time(
    store: Store, channels: Channels, tokenizer: ChatTokenizer, protocol: str, server: Any
) -> None:
    async with server(tokenizer, IDS) as engine:
        engine.abort_after(0, 0, 0)
        turn = await (await channels.to(store, engine, protocol)).sample(1, prompt())
    assert (turn.ids, turn.aborts, len(channels.pauses)) == (IDS, 3, 3)


@BOTH
async def test_an_engine_that_never_stops_aborting_fails_the_turn(
    store: Store, channels: Channels, tokenizer: ChatTokenizer, protocol: str, server: Any
) -> None:
    async with server(tokenizer, IDS) as engine:
        engine.abort_after(*[0] * 100)
        channel = await channels.to(store, engine, protocol, pause_seconds=0.0)
        with pytest.raises(TrainerStatusError) as failed:
            await channel.sample(1, prompt())
    assert failed.value.retryable


async def test_a_paused_vllm_is_waited_for_and_counts_as_no_try(
    store: Store, channels: Channels, tokenizer: ChatTokenizer
) -> None:
    async with vllm_server(tokenizer, IDS) as engine:
        channel = await channels.to(store, engine, attempts=1)
        engine.paused.clear()
        channels.on_pause = lambda: engine.paused.set() if len(channels.pauses) == 6 else None
        turn = await channel.sample(1, prompt())
    assert turn.ids == IDS
    assert [asked.status for asked in engine.asked] == [503] * 6 + [200]
    assert max(channels.pauses) <= 4


async def test_a_vllm_that_stays_paused_fails_the_turn_in_the_end(
    store: Store, channels: Channels, tokenizer: ChatTokenizer
) -> None:
    async with vllm_server(tokenizer, IDS) as engine:
        engine.paused.clear()
        channel = await channels.to(store, engine, pause_seconds=0.05)
        channels.on_pause = lambda: None
        with pytest.raises(TrainerStatusError) as failed:
            await channel.sample(1, prompt())
    assert (failed.value.http_status, failed.value.retryable) == (503, True)


@pytest.mark.parametrize("aborts", [False, True])
async def test_a_paused_run_takes_nothing_of_the_time_for_a_paused_engine(
    store: Store, channels: Channels, tokenizer: ChatTokenizer, aborts: bool
) -> None:
    async def gate(*, midway: bool = False, weights: str | None = None) -> bool:
        # The run is paused between the calls, for longer than an engine may be.
        if engine.asked:
            await asyncio.sleep(0.3)
        return False

    async with vllm_server(tokenizer, IDS) as engine:
        channel = await channels.to(store, engine, attempts=1, pause_seconds=0.2, before_call=gate)
        if aborts:
            engine.abort_after(3, 0)
        else:
            engine.paused.clear()
            channels.on_pause = lambda: engine.paused.set() if len(channels.pauses) == 2 else None
        turn = await channel.sample(1, prompt())
    assert turn.ids == IDS


@pytest.mark.parametrize("held_by", ["the run", "503", "an abort"])
async def test_nothing_is_begun_with_the_name_of_weights_that_were_replaced_meanwhile(
    store: Store, channels: Channels, tokenizer: ChatTokenizer, held_by: str
) -> None:
    now, seen = 0.0, list[str | None]()
    channels.engines = Engines(lambda: now)

    def update() -> None:
        nonlocal now
        now, engine.version = now + 30, "13"
        engine.paused.set()

    async def gate(*, midway: bool = False, weights: str | None = None) -> bool:
        held = held_by == "the run" and not seen
        if held:
            update()
        seen.append(weights)
        return held

    async with vllm_server(tokenizer, IDS) as engine:
        engine.version = "12"
        channel = await channels.to(store, engine, before_call=gate)
        channels.on_pause = update
        if held_by == "503":
            engine.paused.clear()
        elif held_by == "an abort":
            engine.abort_after(0)
        else:
            # Another rollout has asked just now.
            await channels.engines.version(engine.url, version_12, never)
        turn = await channel.sample(1, prompt())
    assert versions(turn) == [("13", IDS)]
    # What weights 12 have computed has the salt 12.
    assert (engine.salts[-1], seen[-1]) == ("13", "13")


async def version_12() -> str:
    return "12"


async def never(error: RolloutError, tries: int, seconds: float) -> None:
    raise error


async def test_a_paused_sglang_lets_its_callers_wait(
    store: Store, channels: Channels, tokenizer: ChatTokenizer
) -> None:
    channels.client = Http1Client(Resolver(Targets.loopback()), timeout=0.2)
    async with sglang_server(tokenizer, IDS) as engine:
        channel = await channels.to(store, engine, "sglang", attempts=1, pause_seconds=30)
        engine.paused.clear()
        turn = asyncio.create_task(channel.sample(1, prompt()))
        # Longer than the limit for usual calls.
        await asyncio.sleep(0.5)
        assert not turn.done()
        engine.paused.set()
        assert (await turn).ids == IDS
    assert (len(engine.asked), channels.pauses) == (1, [])
    await channels.client.aclose()


@BOTH
async def test_a_context_that_is_full_ends_the_turn_unasked(
    store: Store, channels: Channels, tokenizer: ChatTokenizer, protocol: str, server: Any
) -> None:
    async with server(tokenizer, IDS) as engine:
        # SGLang takes no prompt that leaves only six places.
        engine.context = len(PROMPT) + (6 if protocol == "sglang" else 0)
        channel = await channels.to(store, engine, protocol)
        turn = await channel.sample(2, prompt())
        assert (turn.parts, turn.finish) == ((), Finish.LENGTH)
        with pytest.raises(RequestFault, match="the prompt has 3 ids"):
            await channel.sample(1, prompt())
    assert engine.asked == []


async def test_an_engine_with_less_memory_than_context_is_asked_for_what_it_can(
    store: Store, channels: Channels, tokenizer: ChatTokenizer
) -> None:
    async with sglang_server(tokenizer, IDS) as engine:
        said = "Input length (9 tokens) exceeds the maximum allowed length (5 tokens). Use a shorter input."
        engine.refusals = [Refusal(400, {"error": {"message": said}})]
        turn = await (await channels.to(store, engine, "sglang")).sample(2, prompt())
    assert (turn.ids, turn.finish) == (IDS[:6], Finish.LENGTH)


@BOTH
async def test_an_engine_that_does_not_tell_its_context_length_tells_it_by_refusing(
    store: Store, channels: Channels, tokenizer: ChatTokenizer, protocol: str, server: Any
) -> None:
    async with server(tokenizer, IDS) as engine:
        engine.tells_context = False
        engine.context = len(PROMPT) + (8 if protocol == "sglang" else 6)
        turn = await (await channels.to(store, engine, protocol)).sample(2, prompt())
        assert (turn.ids, turn.finish) == (IDS[:6], Finish.LENGTH)
        assert [asked.status for asked in engine.asked] == [400, 200]
        # An engine that refuses what fits is not asked for ever.
        engine.refusals = [Refusal(400, {"error": {"message": "This model's maximum context length is 9 tokens."}})]
        with pytest.raises(TrainerStatusError):
            await (await channels.to(store, engine, protocol)).sample(2, prompt())
