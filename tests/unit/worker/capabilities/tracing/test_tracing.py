"""One trace per rollout over all of its attempts, checked at a collector with OpenTelemetry's own types."""

import sys
from collections import Counter

import pytest
from tests.support.batches import claim, submit
from tests.support.inside_worker import inside_worker
from tests.support.otlp_sink import Collector, collector
from tests.support.scripted_trainer import scripted_trainer
from tests.support.trainer_script import call, say, status

from rolloutpool_common.outcomes import RolloutStatus
from rolloutpool_common.protocol.trace import span_id_of, trace_id_of, traceparent
from rolloutpool_common.rendering import ChatTokenizer, TokenizerCache
from rolloutpool_common.store import Store
from rolloutpool_worker.capabilities.tracing.opened import OpenTracing, TracingUnavailable
from rolloutpool_worker.tracing import NO_TRACE

MARKER = "xyzzy"


def check_tree(found: Collector, uid: str) -> None:
    """All spans of a rollout are one tree, and each lies within its parent."""
    spans = {span.span_id: span for span in found.spans}
    assert len(spans) == len(found.spans)
    assert {span.trace_id for span in found.spans} == {trace_id_of(uid)}
    (root,) = [span for span in found.spans if not span.parent_id]
    assert root.name.startswith("invoke_agent ")
    for span in found.spans:
        assert span.begun_ns <= span.ended_ns
        if span.parent_id:
            parent = spans[span.parent_id]
            # The attempts' ends are noted after the rollout's.
            slack = 2_000_000_000
            assert parent.begun_ns - slack <= span.begun_ns
            assert span.ended_ns <= parent.ended_ns + slack


async def test_a_rollout_is_one_trace_over_all_of_its_attempts(
    fake_redis: str, tokenizer: ChatTokenizer, tokenizers: TokenizerCache
) -> None:
    script = (say(MARKER, [call("add", '{"a": 1, "b": 2}'), call("add", '{"a": 3, "b": 4}')]), say(MARKER))
    rollout = {"messages": [{"role": "user", "content": MARKER}]}
    with collector() as found:
        async with (
            scripted_trainer(tokenizer, *script) as trainer,
            inside_worker(fake_redis, tokenizers, otel_endpoint=found.url) as inside,
        ):
            # Each worker adds one record to the journal, and drains.
            result = await inside.run_in_pieces(server_url=trainer.url, **rollout)
    assert result.status is RolloutStatus.COMPLETED
    check_tree(found, result.uid)
    names = Counter(span.name.partition(" ")[0] for span in found.spans)
    assert names == {"invoke_agent": 1, "attempt": result.attempt, "chat": 2, "execute_tool": 2}
    assert result.attempt > 2
    (root,) = found.named("invoke_agent")
    assert root.attributes["rolloutpool.status"] == "completed"
    assert root.attributes["rolloutpool.turns"] == 2
    assert [span.attributes["rolloutpool.attempt"] for span in found.named("attempt")] == [
        *range(1, result.attempt + 1)
    ]
    chats = found.named("chat")
    assert [span.attributes["rolloutpool.turn"] for span in chats] == [1, 2]
    assert [span.attributes["gen_ai.usage.output_tokens"] for span in chats] == [
        turn.sampled_tokens for turn in result.turns
    ]
    # What the trainer's own spans would continue.
    assert [exchange.headers["traceparent"] for exchange in trainer.exchanges] == [
        traceparent(result.uid, span.span_id) for span in chats
    ]
    assert MARKER.encode() not in b"".join(found.raw)


async def test_a_turn_that_failed_says_why_and_so_does_the_rollout(
    fake_redis: str, tokenizer: ChatTokenizer, tokenizers: TokenizerCache
) -> None:
    unknown = "no such tool\n" * 3
    with collector() as found:
        async with (
            scripted_trainer(tokenizer, say("8", [call(unknown)]), status(400)) as trainer,
            inside_worker(fake_redis, tokenizers, otel_endpoint=found.url) as inside,
        ):
            result = await inside.run_one(server_url=trainer.url)
    assert result.failure is not None
    check_tree(found, result.uid)
    good, bad = found.named("chat")
    assert (good.is_error, bad.is_error) == (False, True)
    assert bad.attributes["error.type"] == result.failure.category
    (tool,) = found.named("execute_tool")
    assert (tool.name, tool.is_error) == ("execute_tool unknown", True)
    assert found.named("invoke_agent")[0].attributes["error.type"] == result.failure.category


@pytest.mark.parametrize("answer", [200, 400, 503])
async def test_a_collector_cannot_harm_a_rollout(
    fake_redis: str, tokenizer: ChatTokenizer, tokenizers: TokenizerCache, answer: int
) -> None:
    with collector(answer) as found:
        async with (
            scripted_trainer(tokenizer, say("8")) as trainer,
            inside_worker(fake_redis, tokenizers, otel_endpoint=found.url) as inside,
        ):
            result = await inside.run_one(server_url=trainer.url)
    assert result.status is RolloutStatus.COMPLETED
    assert found.raw


async def test_a_group_is_traced_whole_or_not_at_all(store: Store) -> None:
    uids = await submit(store, 80, groups=[f"g{number // 4}" for number in range(80)])
    claims = [await claim(store, uid) for uid in uids]

    async def traced(share: float) -> list[bool]:
        tracing = OpenTracing("http://127.0.0.1:1", share)
        chosen = [tracing.trace(held) is not NO_TRACE for held in claims]
        await tracing.close()
        return chosen

    half = await traced(0.5)
    assert all(len(set(half[start : start + 4])) == 1 for start in range(0, 80, 4))
    assert 0 < sum(half) < 80
    assert not any(await traced(0.0))
    assert all(await traced(1.0))


async def test_an_impossible_address_is_no_error_of_tracing(store: Store) -> None:
    (uid,) = await submit(store, [{"server_url": "http://host:99999"}])
    with collector() as found:
        tracing = OpenTracing(found.url, 1.0)
        trace = tracing.trace(await claim(store, uid))
        trace.chat(1, 0.0, summary=None, error=KeyError())
        await tracing.close()
    assert trace.traceparent(1) == traceparent(uid, span_id_of(uid, "turn", 1, 1))
    assert found.spans[0].attributes["error.type"] == "KeyError"


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rolloutpool_worker.capabilities.tracing.sender", None)
    with pytest.raises(TracingUnavailable, match=r"rolloutpool-worker\[otel\]"):
        OpenTracing("http://127.0.0.1:1", 1.0)
