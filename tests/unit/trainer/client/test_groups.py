"""Groups of a batch: whole, without what cannot be trained, filled up where that was asked for; and what is counted."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from tests.support.api_documents import BATCH, failed, group_column, result, results_page, version_segment
from tests.support.stub_pool import Answer, StubPool

from rolloutpool_common.protocol.batch import RolloutItem
from rolloutpool_common.protocol.messages import Message
from rolloutpool_trainer.client.groups import GroupCollector, select
from rolloutpool_trainer.client.results import FinishedRollout
from rolloutpool_trainer.client.submission import Submission
from rolloutpool_trainer.client.sync import RolloutClient
from rolloutpool_trainer.errors import RefillImpossible

MESSAGES = [{"role": "user", "content": "hi"}]
REFILL = "b" + "1" * 32
SECOND = "b" + "2" * 32


def lay_out(pool: StubPool, batch_id: str, groups: Sequence[str | None], results: dict[int, dict[str, Any]]) -> None:
    """A batch that has ended."""
    document = results_page(batch_id, {i: {"group": groups[i]} | changes for i, changes in results.items()})
    pool.on("GET", f"/v1/batches/{batch_id}/rollouts", Answer(body=group_column(batch_id, *groups)))
    pool.on("GET", f"/v1/batches/{batch_id}/results", Answer(body=document))


def accept(pool: StubPool, *batches: tuple[str, int]) -> None:
    """What submits are answered with, in turn."""
    receipts = [
        {"batch_id": name, "total": total, "rollouts": [f"{name}-{i}" for i in range(total)]} for name, total in batches
    ]
    pool.on("POST", "/v1/batches", *(Answer(202, receipt) for receipt in receipts))


def test_what_cannot_be_trained_is_left_out_and_counted(pool: StubPool, client: RolloutClient) -> None:
    groups = ["a"] * 6 + ["b"] * 2
    ends: dict[int, dict[str, Any]] = {
        0: {},
        1: failed("policy", "tool_error"),
        2: failed(),
        3: {"status": "expired", "finish_reason": "deadline"},
        4: {"status": "cancelled", "finish_reason": "cancelled"},
        5: {"samples": []},
        6: {},
        7: failed("request", "validation_error"),
    }
    lay_out(pool, BATCH, groups, ends)
    batch = client.batch(BATCH)
    (group,) = batch.trainable_groups(min_usable=2)
    assert (group.group, [rollout.index for rollout in group.rollouts]) == ("a", [0, 1])
    assert group.dropped == {"infra:network_error": 1, "expired": 1, "cancelled": 1, "untrained": 1}
    assert [rollout.index for rollout in group.refillable] == [2, 3]
    expected = group.dropped | {"request:validation_error": 1, "group": 1}
    assert batch.dropped == expected
    # Reading the batch again counts nothing twice.
    assert len(list(batch.trainable_groups(min_usable=2))) == 1
    assert batch.dropped == expected
    summary = batch.summary()
    assert (summary["rollouts"], summary["groups/usable"], summary["groups/dropped"]) == (8, 1, 1)
    assert summary["dropped/infra/network_error"] == summary["failures/infra/network_error"] == 1


def test_failed_siblings_run_again(pool: StubPool, client: RolloutClient) -> None:
    groups = ["a", "a", "b", "b"]
    accept(pool, (BATCH, 4), (REFILL, 1))
    lay_out(pool, BATCH, groups, {0: {}, 1: failed(), 2: {}, 3: {}})
    lay_out(pool, REFILL, ["a"], {0: {}})
    items: list[RolloutItem | Mapping[str, Any]] = [
        {"group": "a", "n": 2, "rollout_id": "mine", "messages": MESSAGES, "metadata": {"task": 7}},
        RolloutItem(group="b", n=2, messages=[Message(role="user", content="hi")]),
    ]
    batch = client.submit(
        items, defaults={"tokenizer_name": "t"}, trainer="http://h:1", run="job", group={"min_usable": 2}
    )
    found = list(batch.trainable_groups(min_usable=2, refill=1))
    assert [(g.group, [r.uid for r in g.rollouts], g.dropped) for g in found] == [
        ("b", [f"{BATCH}-2", f"{BATCH}-3"], {}),
        ("a", [f"{BATCH}-0", f"{REFILL}-0"], {"infra:network_error": 1}),
    ]
    first, again = (request for request in pool.requests if request.method == "POST")
    assert again.body["rollouts"] == [{"group": "a", "messages": MESSAGES, "metadata": {"task": 7}}]
    for name in ("defaults", "trainer", "run", "priority", "labels"):
        assert again.body[name] == first.body[name]
    # One rollout alone would break a group policy of the whole batch.
    assert again.body["group"] is None
    summary = batch.summary()
    assert (summary["rollouts"], summary["groups/refills"], summary["groups/usable"]) == (5, 1, 2)


def test_a_refill_ends_after_so_many_times(pool: StubPool, client: RolloutClient) -> None:
    accept(pool, (BATCH, 1), (REFILL, 1), (SECOND, 1))
    lay_out(pool, BATCH, ["a"], {0: failed()})
    lay_out(pool, REFILL, ["a"], {0: failed()})
    lay_out(pool, SECOND, ["a"], {0: failed("infra", "rate_limited")})
    batch = client.submit([{"group": "a", "messages": MESSAGES}])
    assert list(batch.trainable_groups(refill=2)) == []
    assert batch.dropped == {"infra:network_error": 2, "infra:rate_limited": 1}
    posts = [request for request in pool.requests if request.method == "POST"]
    keys = [request.headers["Idempotency-Key"] for request in posts]
    assert len(set(keys)) == 3
    assert [key.split("/")[:3] for key in keys[1:]] == [["refill", BATCH, "1"], ["refill", BATCH, "2"]]


def test_a_batch_that_was_looked_up_has_no_prompts_to_run_again(pool: StubPool, client: RolloutClient) -> None:
    lay_out(pool, BATCH, ["a"], {0: failed()})
    with pytest.raises(RefillImpossible, match="looked up by its id"):
        list(client.batch(BATCH).trainable_groups(refill=1))


def test_the_summary_is_flat_numbers(pool: StubPool, client: RolloutClient) -> None:
    spans = [{"spans": {"llm_ms": float(100 - i)}} for i in range(100)]
    turn = {
        "turn": 1,
        "prompt_tokens": 2,
        "sampled_tokens": 2,
        "mask_sent": None,
        "finish_reason": "stop",
        "drift": "none",
        "tool_calls": 2,
        "stop": "sampled",
        "tools": [{"name": "add", "ms": 1.0, "ok": True}, {"name": "add", "ms": 1.0, "ok": False}],
    }
    ends: dict[int, dict[str, Any]] = {i: {"group": None} | changes for i, changes in enumerate(spans)}
    ends[3] |= {"turns": [turn], "num_tool_calls": 2, "attempt": 2, "drift": {"edited": 1}}
    ends[4] |= version_segment("step-5")
    ends[5] |= version_segment("step-7")
    ends[6] |= version_segment("main")
    lay_out(pool, BATCH, [None] * 100, ends)
    summary = client.batch(BATCH).summary(policy_version="step-8")
    assert all(isinstance(value, int | float) for value in summary.values())
    expected = {
        "rollouts": 100,
        "rollouts/completed": 100,
        "rollouts/failed": 0,
        "rollouts/retried": 1,
        "alignment/exact": 100,
        "alignment/forked": 0,
        "drift/edited": 1,
        "finish/stop": 100,
        "samples": 100,
        "turns": 100,
        "turns/mean": 1.0,
        "tokens/sampled": 200,
        "tools/calls": 2,
        "tools/errors": 1,
        "spans/llm_ms/p50": 50.0,
        "spans/llm_ms/p95": 95.0,
        "versions/min": 5,
        "versions/max": 7,
        "staleness/mean": 2.0,
        "staleness/max": 3,
    }
    assert {name: summary[name] for name in expected} == expected


def test_an_empty_summary_has_its_fixed_keys(pool: StubPool, client: RolloutClient) -> None:
    pool.on("GET", f"/v1/batches/{BATCH}/results", Answer(body=results_page(BATCH, {})))
    summary = client.batch(BATCH).summary()
    assert summary["rollouts"] == summary["tools/errors"] == summary["spans/total_ms/p95"] == 0
    assert "staleness/mean" not in summary


def test_ten_thousand_rollouts_are_grouped_and_refilled_in_no_time() -> None:
    count, size = 10_000, 8
    rollouts = [
        FinishedRollout.model_validate(
            result(i, group=f"g{i // size}", cursor=f"{i}-0") | (failed() if i % size else {})
        )
        for i in range(count)
    ]
    started = time.process_time()
    collector = GroupCollector(rollout.group for rollout in rollouts)
    submission = Submission([{"messages": MESSAGES, "n": size, "group": f"g{i}"} for i in range(count // size)], {})
    groups = [select(group.rollouts) for rollout in rollouts if (group := collector.take(rollout))]
    again = [submission.again(group.refillable).rollouts for group in groups if group.judge(size, None) == "group"]
    assert time.process_time() - started < 2.0
    assert len(groups) == count // size
    assert [len(items) for items in again] == [size - 1] * len(groups)
    assert {item["group"] for items in again for item in items} == {f"g{i}" for i in range(count // size)}  # type: ignore[index]
