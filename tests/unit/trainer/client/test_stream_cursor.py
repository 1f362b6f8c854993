"""A stream submits ahead, yields each group once, and goes on where another process saved its cursor."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.answered_pool import RUN
from tests.support.api_documents import group_column, results_page, status, version_segment
from tests.support.stream_batches import accept, lay_out, name_of, posts, prompts, seen
from tests.support.stub_pool import Answer, StubPool, stub_pool

from rolloutpool_trainer.client.sync import RolloutClient
from rolloutpool_trainer.client.sync_stream import RolloutStream
from rolloutpool_trainer.errors import NotFound, PoolUnavailable

OPTIONS: dict[str, Any] = {"trainer": "http://h:1", "run": "job"}


@pytest.fixture
def pool() -> Iterator[StubPool]:
    with stub_pool() as served:
        served.on("PUT", "/v1/runs/job/policy_version", Answer(body=RUN))
        yield served


@pytest.fixture
def client(pool: StubPool) -> Iterator[RolloutClient]:
    with RolloutClient(pool.url, timeout=0.0) as made:
        yield made


def test_while_one_batch_is_read_the_leases_of_the_others_go_on(pool: StubPool, client: RolloutClient) -> None:
    accept(pool, 0, 1)
    for position in (0, 1):
        lay_out(pool, position)
        pool.on("GET", f"/v1/batches/{name_of(position)}", Answer(404, {"error": {"message": "deleted"}}))
    # Each page is a quarter of this lease later than the one before.
    list(RolloutStream(client, prompts(2), lease_seconds=1e-9, **OPTIONS))
    asked = [request.path.partition("?")[0] for request in pool.requests if request.method == "GET"]
    assert f"/v1/batches/{name_of(1)}" in asked[: asked.index(f"/v1/batches/{name_of(1)}/rollouts")]


def test_what_a_lease_has_ended_is_sampled_again(pool: StubPool, client: RolloutClient) -> None:
    accept(pool, 0, 1)
    lay_out(pool, 0, {2: {"status": "cancelled"}, 3: {"status": "cancelled"}})
    lay_out(pool, 1)
    state = status(counts={"completed": 2, "cancelled": 2}) | {"batch_id": name_of(0), "cancel_cause": "lease"}
    pool.on("GET", f"/v1/batches/{name_of(0)}", Answer(body=state))
    stream = RolloutStream(client, prompts(1), **OPTIONS)
    assert [seen(group) for group in stream] == ["0a", "1b"]
    assert posts(pool) == ["0a", "0a"]


def announced(pool: StubPool) -> list[tuple[int, bool]]:
    """The versions that were announced, and whether they might be lower than the one before."""
    bodies = [request.body for request in pool.requests if request.method == "PUT"]
    return [(body["policy_version"], body["rollback"]) for body in bodies]


def test_the_pool_is_told_the_version_once_and_compares_as_well(pool: StubPool, client: RolloutClient) -> None:
    accept(pool, 0, 1, 2)
    for position in range(3):
        lay_out(pool, position)
    stream = RolloutStream(client, prompts(3), max_staleness=2, on_stale="finish", **OPTIONS)
    groups = iter(stream)
    next(groups)
    assert announced(pool) == []
    # A trainer that went back to a checkpoint may begin with a lower version than the one that was announced before.
    for version in (7, 7, 8, 6, None):
        stream.version = version
        next(groups)
    assert announced(pool) == [(7, True), (8, False), (6, True)]
    bodies = [request.body for request in pool.requests if request.method == "POST"]
    assert [(body["max_staleness"], body["on_stale"]) for body in bodies] == [(2, "finish")] * 3


def test_a_version_that_could_not_be_announced_is_announced_again(pool: StubPool, client: RolloutClient) -> None:
    accept(pool, 0)
    lay_out(pool, 0)
    stream = RolloutStream(client, prompts(1), **OPTIONS)
    groups = iter(stream)
    next(groups)
    pool.on("PUT", "/v1/runs/job/policy_version", Answer(503), Answer(body=RUN))
    stream.version = 1
    next(groups)
    stream.version = 2
    with pytest.raises(PoolUnavailable):
        next(groups)
    assert [seen(group) for group in stream] == []
    assert announced(pool) == [(1, True), (2, False), (2, False)]


def test_what_the_pool_has_dropped_is_counted_as_stale(pool: StubPool, client: RolloutClient) -> None:
    accept(pool, 0)
    dropped: dict[str, Any] = {"status": "cancelled", "finish_reason": "stale", "samples": [], "alignment": None}
    finished = version_segment("1") | {"stale": "finished", "staleness": 3}
    lay_out(pool, 0, {0: dropped | {"stale": "dropped"}, 1: dropped | {"stale": "not_started"}, 2: finished})
    stream = RolloutStream(client, prompts(1), max_staleness=1, **OPTIONS)
    stream.version = 4
    assert [[rollout.index for rollout in group.rollouts] for group in stream] == [[3]]
    # Two by the pool, one whose result the stream has read.
    assert stream.dropped == {"stale": 3}
    summary = stream.summary()
    assert (summary["stale/dropped"], summary["stale/not_started"], summary["stale/finished"]) == (1, 1, 1)
    assert (summary["dropped/stale"], summary["rollouts/cancelled"]) == (3, 2)


def test_another_process_goes_on(pool: StubPool, client: RolloutClient) -> None:
    accept(pool, 0, 1, 2, 3)
    for position in range(4):
        lay_out(pool, position)
    before = RolloutStream(client, prompts(4), **OPTIONS)
    groups = iter(before)
    assert [seen(next(groups)) for _ in range(3)] == ["0a", "0b", "1a"]
    saved = before.cursor
    assert json.loads(saved)["taken"] == 3
    after = RolloutStream(client, iter(prompts(4)), cursor=saved, **OPTIONS)
    assert [seen(group) for group in after] == ["1b", "2a", "2b", "3a", "3b"]
    assert posts(pool) == ["0a", "1a", "2a", "3a"]


def test_a_submit_that_was_not_saved_is_sent_under_the_same_key(pool: StubPool, client: RolloutClient) -> None:
    accept(pool, 0, 1, 0, 1)
    lay_out(pool, 0)
    lay_out(pool, 1)
    lost = RolloutStream(client, prompts(2), **OPTIONS)
    empty = lost.cursor
    next(iter(lost))
    again = RolloutStream(client, prompts(2), cursor=empty, **OPTIONS)
    assert [seen(group) for group in again] == ["0a", "0b", "1a", "1b"]
    keys = [request.headers["Idempotency-Key"] for request in pool.requests if request.method == "POST"]
    assert keys[:2] == keys[2:]
    assert len(set(keys)) == 2


def test_a_trainer_that_comes_back_elsewhere_submits_anew(pool: StubPool, client: RolloutClient) -> None:
    pool.on("POST", "/v1/batches", Answer(409, {"error": {"message": "used before", "batch_id": name_of(1)}}))
    accept(pool, 0)
    lay_out(pool, 0)
    stream = RolloutStream(client, prompts(1), **OPTIONS)
    assert [seen(group) for group in stream] == ["0a", "0b"]
    keys = [request.headers["Idempotency-Key"] for request in pool.requests if request.method == "POST"]
    assert [key.rpartition("/")[2] for key in keys] == ["1", "2"]


def test_a_pool_that_was_away_is_asked_again_by_iterating_again(pool: StubPool, client: RolloutClient) -> None:
    accept(pool, 0)
    pool.on("GET", f"/v1/batches/{name_of(0)}/rollouts", Answer(body=group_column(name_of(0), "a", "a", "b", "b")))
    first = results_page(name_of(0), {0: {"group": "a"}, 1: {"group": "a"}}, complete=False)
    whole = results_page(name_of(0), {i: {"group": "aabb"[i]} for i in range(4)})
    pool.on("GET", f"/v1/batches/{name_of(0)}/results", Answer(body=first), Answer(503), Answer(body=whole))
    stream = RolloutStream(client, prompts(1), **OPTIONS)
    groups = iter(stream)
    assert seen(next(groups)) == "0a"
    with pytest.raises(PoolUnavailable):
        next(groups)
    assert [seen(group) for group in stream] == ["0b"]


def test_a_submit_that_failed_is_tried_again_with_the_same_prompts(pool: StubPool, client: RolloutClient) -> None:
    pool.on("POST", "/v1/batches", Answer(503))
    accept(pool, 0)
    lay_out(pool, 0)
    stream = RolloutStream(client, iter(prompts(1)), **OPTIONS)
    with pytest.raises(PoolUnavailable):
        list(stream)
    assert [seen(group) for group in stream] == ["0a", "0b"]
    assert posts(pool) == ["0a", "0a"]


def test_a_batch_that_the_pool_has_lost_is_sampled_again(pool: StubPool, client: RolloutClient) -> None:
    lost = Answer(404, {"error": {"message": "no such batch"}})
    accept(pool, 0, 5)
    pool.on("GET", f"/v1/batches/{name_of(0)}/rollouts", lost)
    lay_out(pool, 5)
    assert [seen(group) for group in RolloutStream(client, prompts(1), **OPTIONS)] == ["5a", "5b"]


def test_a_batch_that_is_lost_again_and_again_is_an_error(pool: StubPool, client: RolloutClient) -> None:
    accept(pool, 0)
    pool.on("GET", f"/v1/batches/{name_of(0)}/rollouts", Answer(404, {"error": {"message": "no such batch"}}))
    with pytest.raises(NotFound):
        list(RolloutStream(client, prompts(1), **OPTIONS))
    assert posts(pool) == ["0a"] * 3


@pytest.mark.parametrize(
    "cursor",
    ["", "7", "[]", "{}", '{"open":[{}]}', '{"name":1,"taken":0,"open":[]}', '{"name":"x","taken":"a","open":[]}'],
)
def test_other_texts_are_no_cursor(cursor: str, client: RolloutClient) -> None:
    with pytest.raises(ValueError, match="not the cursor"):
        RolloutStream(client, [], cursor=cursor)


def test_a_cursor_of_other_prompts_is_refused(pool: StubPool, client: RolloutClient) -> None:
    accept(pool, 0, 1)
    lay_out(pool, 0)
    stream = RolloutStream(client, prompts(2), **OPTIONS)
    next(iter(stream))
    with pytest.raises(ValueError, match="same prompts"):
        RolloutStream(client, prompts(1), cursor=stream.cursor, **OPTIONS)
    with pytest.raises(ValueError, match="in_flight"):
        RolloutStream(client, [], in_flight=0)


def test_what_is_in_flight_can_be_ended(pool: StubPool, client: RolloutClient) -> None:
    accept(pool, 0, 1, 2)
    for position in range(3):
        lay_out(pool, position)
        pool.on("DELETE", f"/v1/batches/{name_of(position)}", Answer(body={}))
    stream = RolloutStream(client, prompts(3), in_flight=2, **OPTIONS)
    stream.cancel()
    groups = iter(stream)
    for _ in range(3):
        next(groups)
    stream.cancel()
    ended = [request.path for request in pool.requests if request.method == "DELETE"]
    assert ended == [f"/v1/batches/{name_of(position)}" for position in (1, 2)]
