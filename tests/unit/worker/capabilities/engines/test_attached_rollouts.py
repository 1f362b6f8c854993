"""Whole rollouts over imitated engines: what the engines say of ids comes out beside the right ids, or is missing."""

import asyncio
from typing import Any

import numpy as np
import pytest
from tests.support.batches import new_batch, uids_of
from tests.support.engine_channels import BOTH
from tests.support.forks import planned
from tests.support.imitated_engine import ImitatedEngine, experts_of, logprob_of, mask_of
from tests.support.inside_worker import InsideWorker, inside_worker
from tests.support.rollouts_of_a_run import ADD
from tests.support.vllm_server import vllm_server

from rolloutpool_common.capabilities.engines.attachments import AttachedPiece
from rolloutpool_common.capabilities.engines.kept import read_pieces, read_record
from rolloutpool_common.outcomes import RolloutStatus
from rolloutpool_common.protocol.result import RolloutResult
from rolloutpool_common.rendering import ChatTokenizer, TokenizerCache
from rolloutpool_common.store import Store
from rolloutpool_rl.attachments import routed_experts, sampling_masks

KINDS = ["routed_experts", "sampling_mask"]
PLENTY = 1_000_000


def started(engine: ImitatedEngine) -> ImitatedEngine:
    """Started with the flags that attachments need."""
    engine.routes = engine.masks = True
    return engine


async def submit(store: Store, url: str, protocol: str, *, most: int = PLENTY, **options: Any) -> str:
    shared = {
        "server_url": url,
        "protocol": protocol,
        "attach": KINDS,
        "sampling_params": {"max_tokens": 64},
        **options,
    }
    batch = new_batch(1, shared=shared, attaches=True, attachment_bytes=most)
    await store.batches.submit(batch)
    return uids_of(batch)[0]


async def pieces_of(store: Store, uid: str) -> list[AttachedPiece]:
    record = await read_record(store, uid)
    return [] if record is None else read_pieces(record)


def flat(place: int, token: int) -> list[int]:
    """The experts of an id in one row."""
    return [expert for layer in experts_of(place, token) for expert in layer]


def check(result: RolloutResult, pieces: list[AttachedPiece], *, lost: frozenset[int] = frozenset()) -> None:
    """Every row is of the very id beside which it stands, and what was lost with a turn is marked, and nothing else."""
    assert result.status is RolloutStatus.COMPLETED, result.failure
    for sample, routed, masks in zip(
        result.samples, routed_experts(result, pieces), sampling_masks(result, pieces), strict=True
    ):
        context, at = [*sample.prompt_ids, *sample.response_ids], len(sample.prompt_ids)
        sampled = [segment for segment in sample.segments if segment.kind == "sampled"]
        # A turn reports its ids but the last, and before them what came since the last sampled id.
        own, before = np.zeros(len(context) - 1, bool), 0
        for segment in sampled:
            end = at + segment.start + segment.n - 1
            own[before:end] = segment.turn not in lost
            before = end
        assert routed.present.tolist() == own.tolist()
        for place in np.flatnonzero(routed.present).tolist():
            assert routed.experts[place].ravel().tolist() == flat(place, context[place])
        assert set(routed.turns[routed.present].tolist()) == {s.turn for s in sampled} - lost
        for place, token in enumerate(sample.response_ids):
            turn = next((s.turn for s in sampled if s.start <= place < s.start + s.n), None)
            assert masks.present[place] == (turn is not None and turn not in lost)
            found = masks.ids[masks.offsets[place] : masks.offsets[place + 1]].tolist()
            assert found == (mask_of(token) if masks.present[place] else [])


@BOTH
@pytest.mark.parametrize("knows_start", [True, False])
async def test_each_row_stands_beside_its_id(
    inside: InsideWorker, store: Store, tokenizer: ChatTokenizer, protocol: str, server: Any, knows_start: bool
) -> None:
    async with server(tokenizer, ADD, ADD, "It is 8.") as engine:
        started(engine).knows_start = knows_start
        uid = await submit(store, engine.url, protocol)
        assert await inside.take(uid) == "completed"
        asked = [request.document for request in engine.asked]
    result, pieces = await inside.result(uid), await pieces_of(store, uid)
    check(result, pieces)
    assert result.attachments is not None
    assert result.attachments.missing == dict.fromkeys(KINDS, 0)
    assert 0 < result.attachments.bytes < 10_000
    assert "attachments_missing" not in result.warnings
    assert [(piece.kind, piece.turn) for piece in pieces] == [(kind, turn) for turn in (1, 2, 3) for kind in KINDS]
    # Each call tells only what is new, however long the context is.
    routed = [piece for piece in pieces if piece.kind == "routed_experts"]
    assert [piece.start for piece in routed[1:]] == [piece.start + piece.rows for piece in routed[:-1]]
    names = ["routed_experts_prompt_start", "routed_experts_start_len"]
    starts = [{**document, **document["sampling_params"]}.get(names[protocol == "sglang"]) for document in asked]
    assert starts == [0, *(piece.start for piece in routed[1:])]
    if protocol == "sglang":
        (masks,) = sampling_masks(result, pieces)
        told = masks.logprobs[masks.present]
        ids = np.array(result.samples[0].response_ids)[masks.present]
        assert told.tolist() == [logprob_of(int(token)) / 2 for token in ids]


@BOTH
@pytest.mark.parametrize("records", [1, 2, 3])
async def test_what_a_worker_had_is_lost_with_it(
    fake_redis: str,
    tokenizers: TokenizerCache,
    store: Store,
    tokenizer: ChatTokenizer,
    protocol: str,
    server: Any,
    records: int,
) -> None:
    async with server(tokenizer, ADD, ADD, "It is 8.") as engine:
        started(engine)
        uid = await submit(store, engine.url, protocol)
        async with inside_worker(fake_redis, tokenizers) as first:
            first.stop_after(records)
            assert await first.take(uid) == "drained"
        async with inside_worker(fake_redis, tokenizers) as second:
            assert await second.take(uid) == "completed"
            result = await second.result(uid)
    turns = (records + 1) // 2
    check(result, await pieces_of(store, uid), lost=frozenset(range(1, turns + 1)))
    assert result.attachments is not None
    assert result.attachments.missing == dict.fromkeys(KINDS, turns)
    assert "attachments_missing" in result.warnings


@BOTH
async def test_a_forks_first_turns_are_in_its_parents(
    inside: InsideWorker, store: Store, tokenizer: ChatTokenizer, protocol: str, server: Any
) -> None:
    async with server(tokenizer, ADD, ADD, "It is 8.") as engine:
        uid = await submit(store, started(engine).url, protocol)
        await inside.take(uid)
        parent, theirs = await inside.result(uid), await pieces_of(store, uid)
        batch = planned(parent, 3, server_url=engine.url)
        assert batch.attaches
        await store.batches.submit(batch.__class__(**{**vars(batch), "attachment_bytes": PLENTY}))
        (child,) = uids_of(batch)
        assert await inside.take(child) == "completed"
    result, own = await inside.result(child), await pieces_of(store, child)
    check(result, own, lost=frozenset({1, 2}))
    assert result.attachments is not None
    assert result.attachments.missing == dict.fromkeys(KINDS, 0)
    # The parent's rows stand at the same places, up to the first of the fork's own.
    (ours,), (of_parent,) = routed_experts(result, own), routed_experts(parent, theirs)
    first = int(np.flatnonzero(ours.present)[0])
    assert of_parent.present[:first].all()
    context = [*result.samples[0].prompt_ids, *result.samples[0].response_ids]
    for place in range(first):
        assert of_parent.experts[place].ravel().tolist() == flat(place, context[place])


@BOTH
async def test_after_an_edit_the_new_context_is_told_from_its_start(
    inside: InsideWorker, store: Store, tokenizer: ChatTokenizer, protocol: str, server: Any
) -> None:
    context = {"limit_tokens": 16, "on_limit": "truncate"}
    async with server(tokenizer, ADD, ADD, "It is 8.") as engine:
        started(engine)
        uid = await submit(store, engine.url, protocol, context=context)
        assert await inside.take(uid) == "completed"
    result = await inside.result(uid)
    assert len(result.samples) > 1
    check(result, await pieces_of(store, uid))


async def test_the_older_endpoint_of_vllm_has_no_masks(
    inside: InsideWorker, store: Store, tokenizer: ChatTokenizer
) -> None:
    async with vllm_server(tokenizer, ADD, "It is 8.") as engine:
        started(engine)
        engine.scale_out = False
        uid = await submit(store, engine.url, "vllm")
        await inside.take(uid)
    result, pieces = await inside.result(uid), await pieces_of(store, uid)
    assert result.attachments is not None
    assert result.attachments.missing == {"routed_experts": 0, "sampling_mask": 2}
    (routed,) = routed_experts(result, pieces)
    assert routed.present.all()
    (masks,) = sampling_masks(result, pieces)
    assert not masks.present.any()
    assert np.isnan(masks.logprobs).all()
    assert {piece.lacks for piece in pieces if piece.kind == "sampling_mask"} == {"not_sent"}


@BOTH
async def test_an_engine_that_lies_costs_its_attachments_and_not_the_rollout(
    inside: InsideWorker, store: Store, tokenizer: ChatTokenizer, protocol: str, server: Any
) -> None:
    def shift(reply: dict[str, Any]) -> None:
        place = reply["meta_info"] if protocol == "sglang" else reply["choices"][0]
        name = "output_token_sampling_mask" if protocol == "sglang" else "sampling_mask"
        place[name] = [*place[name][1:], place[name][0]]
        place["routed_experts"] = place["routed_experts"][:-8]

    async with server(tokenizer, "It is 8.") as engine:
        started(engine).change = shift
        uid = await submit(store, engine.url, protocol)
        assert await inside.take(uid) == "completed"
    pieces = await pieces_of(store, uid)
    assert [piece.lacks for piece in pieces] == ["unusable", "unusable"]
    assert (await inside.result(uid)).warnings == ["attachments_missing"]


async def test_no_more_is_stored_than_was_promised(
    inside: InsideWorker, store: Store, tokenizer: ChatTokenizer
) -> None:
    async with vllm_server(tokenizer, ADD, ADD, ADD, ADD, "It is 8.") as engine:
        # One tool: with all that other tests' plug-ins bring, the prompt alone would be too large.
        uid = await submit(store, started(engine).url, "vllm", most=2000, tools=["add"])
        assert await inside.take(uid) == "completed"
    record = await read_record(store, uid)
    assert record is not None
    assert len(record) < 2000 + 10 * 200
    lacks = [piece.lacks for piece in read_pieces(record)]
    assert lacks[0] is None
    assert lacks[-1] == "too_large"
    assert len((await inside.result(uid)).turns) == 5


async def test_a_cancelled_rollout_leaves_none(inside: InsideWorker, store: Store, tokenizer: ChatTokenizer) -> None:
    async with vllm_server(tokenizer, ADD, "It is 8.") as engine:
        started(engine)
        uid = await submit(store, engine.url, "vllm")

        async def cancel(asked: Any) -> None:
            if len(engine.asked) == 2:
                await store.rollouts.cancel(uid)
                await asyncio.sleep(0)

        engine.before = cancel
        await inside.take(uid)
    assert await read_record(store, uid) is None
