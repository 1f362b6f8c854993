"""What a training loop does with a stream: steps of whole groups, groups without signal, updates, and its state."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.answered_pool import RUN
from tests.support.api_documents import group_column, results_page, status
from tests.support.stream_batches import accept, lay_out, name_of, posts, prompts, seen
from tests.support.stub_pool import Answer, StubPool

from rolloutpool_trainer.client.aio import AsyncRolloutClient
from rolloutpool_trainer.client.aio_stream import AsyncRolloutStream
from rolloutpool_trainer.client.stream_state import MOST_REFUSED
from rolloutpool_trainer.client.sync import RolloutClient
from rolloutpool_trainer.client.sync_batch import TrainableGroup
from rolloutpool_trainer.client.sync_stream import RolloutStream
from rolloutpool_trainer.errors import NothingKept, PoolUnavailable

OPTIONS: dict[str, Any] = {"trainer": "http://h:1"}


@pytest.fixture
def client(pool: StubPool) -> Iterator[RolloutClient]:
    with RolloutClient(pool.url, timeout=0.0) as made:
        yield made


def batches(pool: StubPool, count: int, **ends: dict[int, dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Lays out batches of two groups; returns their prompts."""
    accept(pool, *range(count))
    for position in range(count):
        lay_out(pool, position, ends.get(f"b{position}"))
    return prompts(count)


def names(steps: list[list[TrainableGroup]]) -> list[str]:
    return ["+".join(seen(group) for group in step) for step in steps]


def differ(group: TrainableGroup) -> bool:
    return len({rollout.reward for rollout in group.rollouts}) > 1


def test_a_step_has_so_many_groups_and_the_last_one_the_rest(pool: StubPool, client: RolloutClient) -> None:
    stream = RolloutStream(client, batches(pool, 4), **OPTIONS)
    assert names(list(stream.steps(3))) == ["0a+0b+1a", "1b+2a+2b", "3a+3b"]
    assert list(stream.steps(3)) == []
    with pytest.raises(ValueError, match="at least 1 group; it has 0"):
        list(stream.steps(0))


def test_groups_of_a_step_that_was_not_complete_are_in_the_next_one(pool: StubPool, client: RolloutClient) -> None:
    batches(pool, 1)
    accept(pool, 1)
    column = Answer(body=group_column(name_of(1), "a", "a", "b", "b"))
    pool.on("GET", f"/v1/batches/{name_of(1)}/rollouts", Answer(503), column)
    pool.on("GET", f"/v1/batches/{name_of(1)}/results", Answer(body=results_page(name_of(1), whole())))
    stream = RolloutStream(client, prompts(2), **OPTIONS)
    with pytest.raises(PoolUnavailable):
        list(stream.steps(3))
    # They were read, but never yielded: a process that goes on from here reads them again.
    state = stream.state_dict()
    after = RolloutStream(client, prompts(2), **OPTIONS)
    after.load_state_dict(state)
    assert names(list(after.steps(4))) == ["0a+0b+1a+1b"]
    assert names(list(stream.steps(4))) == ["0a+0b+1a+1b"]
    assert stream.state_dict() == after.state_dict()
    assert posts(pool) == ["0a", "1a"]


def whole() -> dict[int, dict[str, Any]]:
    return {index: {"group": "aabb"[index]} for index in range(4)}


def test_another_process_goes_on_between_two_steps(pool: StubPool, client: RolloutClient) -> None:
    asked = batches(pool, 3)
    before = RolloutStream(client, asked, **OPTIONS)
    steps = before.steps(3)
    next(steps)
    before.version = 7
    state = before.state_dict()
    next(steps)
    after = RolloutStream(client, iter(asked), **OPTIONS)
    after.load_state_dict(state)
    assert after.version == 7
    assert names(list(after.steps(2))) == ["1b+2a", "2b"]
    assert posts(pool) == ["0a", "1a", "2a"]


def test_a_state_belongs_into_a_new_stream_over_the_same_prompts(pool: StubPool, client: RolloutClient) -> None:
    asked = batches(pool, 2)
    stream = RolloutStream(client, asked, **OPTIONS)
    next(iter(stream))
    with pytest.raises(ValueError, match="begun already"):
        stream.load_state_dict(stream.state_dict())
    with pytest.raises(ValueError, match="same prompts"):
        RolloutStream(client, asked[:1], **OPTIONS).load_state_dict(stream.state_dict())
    wrongs: list[Any] = [{}, {"cursor": "7", "version": None}, {"cursor": stream.cursor}, [], "x"]
    for wrong in wrongs:
        with pytest.raises(ValueError, match=r"not the (state|cursor)"):
            RolloutStream(client, asked, **OPTIONS).load_state_dict(wrong)


def test_groups_without_signal_are_left_out_and_later_ones_come_in_their_place(
    pool: StubPool, client: RolloutClient
) -> None:
    ends: dict[int, dict[str, Any]] = {0: {"reward": 1.0}, 1: {"reward": 1.0}, 2: {"reward": 0.0}, 3: {"reward": 1.0}}
    stream = RolloutStream(client, batches(pool, 3, b0=ends, b1=ends, b2=ends), keep=differ, **OPTIONS)
    assert names(list(stream.steps(2))) == ["0b+1b", "2b"]
    assert stream.dropped == {"refused": 6}
    summary = stream.summary()
    assert (summary["groups/usable"], summary["groups/dropped"], summary["dropped/refused"]) == (1, 1, 2)


def test_others_are_sampled_in_the_place_of_a_group_that_is_refused(pool: StubPool, client: RolloutClient) -> None:
    refill, asked = name_of(9), prompts(1)
    accept(pool, 0)
    lay_out(pool, 0, {2: {"reward": 1.0}})
    pool.on("POST", "/v1/batches", *(Answer(202, receipt(name)) for name in (refill, name_of(8))))
    pool.on("GET", f"/v1/batches/{refill}/results", Answer(body=results_page(refill, pair({}))))
    pool.on("GET", f"/v1/batches/{name_of(8)}/results", Answer(body=results_page(name_of(8), pair({"reward": 2.0}))))
    stream = RolloutStream(client, asked, keep=differ, refill=2, **OPTIONS)
    groups = list(stream)
    assert [(group.group, group.rollouts[0].batch_id) for group in groups] == [("b", name_of(0)), ("a", name_of(8))]
    assert groups[1].dropped == {"refused": 4}
    again = [request.body["rollouts"] for request in pool.requests if request.method == "POST"][1:]
    expected = [{"group": "a", "messages": asked[0][0]["messages"]}] * 2
    assert again == [expected, expected]
    # The same request again, as a trainer sends that comes back, is the same batch.
    keys = [request.headers["Idempotency-Key"] for request in pool.requests if request.method == "POST"][1:]
    assert [key.split("/")[2] for key in keys] == ["1", "2"]


def test_a_trainer_that_comes_back_elsewhere_refills_anew(pool: StubPool, client: RolloutClient) -> None:
    accept(pool, 0)
    lay_out(pool, 0, {2: {"reward": 1.0}})
    used = Answer(409, {"error": {"message": "used before", "batch_id": name_of(1)}})
    pool.on("POST", "/v1/batches", used, Answer(202, receipt(name_of(9))))
    pool.on("GET", f"/v1/batches/{name_of(9)}/results", Answer(body=results_page(name_of(9), pair({"reward": 2.0}))))
    stream = RolloutStream(client, prompts(1), keep=differ, refill=1, **OPTIONS)
    assert [group.rollouts[0].batch_id for group in stream] == [name_of(0), name_of(9)]
    keys = [request.headers["Idempotency-Key"] for request in pool.requests if request.method == "POST"]
    assert len(set(keys)) == 3


def receipt(batch_id: str) -> dict[str, Any]:
    return {"batch_id": batch_id, "total": 2, "rollouts": [f"{batch_id}-0", f"{batch_id}-1"]}


def pair(second: dict[str, Any]) -> dict[int, dict[str, Any]]:
    return {0: {"group": "a"}, 1: {"group": "a"} | second}


def test_a_group_that_is_refused_again_and_again_is_given_up(pool: StubPool, client: RolloutClient) -> None:
    accept(pool, 0)
    lay_out(pool, 0)
    pool.on("POST", "/v1/batches", *(Answer(202, receipt(name_of(i))) for i in range(1, 7)))
    for i in range(1, 7):
        pool.on("GET", f"/v1/batches/{name_of(i)}/results", Answer(body=results_page(name_of(i), pair({}))))
    stream = RolloutStream(client, prompts(1), keep=lambda group: False, refill=3, **OPTIONS)
    assert list(stream) == []
    # Two groups, sampled once and three times more.
    assert stream.dropped == {"refused": 2 * 2 * 4}
    assert len(posts(pool)) == 1 + 2 * 3


def test_what_was_cancelled_meanwhile_is_not_sampled_again(pool: StubPool, client: RolloutClient) -> None:
    accept(pool, 0)
    lay_out(pool, 0, {1: {"status": "cancelled", "finish_reason": "cancelled"}})
    state = {"batch_id": name_of(0), "cancel_cause": "caller"}
    pool.on("GET", f"/v1/batches/{name_of(0)}", Answer(body=status() | state))
    stream = RolloutStream(client, prompts(1), keep=lambda group: group.group == "b", refill=3, **OPTIONS)
    assert [seen(group) for group in stream] == ["0b"]
    assert posts(pool) == ["0a"]


def test_a_stream_of_which_nothing_is_kept_is_an_error(pool: StubPool, client: RolloutClient) -> None:
    accept(pool, *range(MOST_REFUSED + 2))
    for position in range(MOST_REFUSED + 2):
        lay_out(pool, position)
    endless = (one for _ in iter(int, 1) for one in prompts(1))
    stream = RolloutStream(client, endless, keep=lambda group: False, **OPTIONS)
    with pytest.raises(NothingKept, match=f"every group of {MOST_REFUSED} batches"):
        list(stream)


@pytest.mark.parametrize(("answer", "error"), [(None, "keep returned None"), (ZeroDivisionError("x"), "x")])
def test_a_condition_that_fails_loses_nothing(pool: StubPool, client: RolloutClient, answer: Any, error: str) -> None:
    faults = [answer]

    def keep(group: TrainableGroup) -> bool:
        if group.group == "b" and faults:
            fault = faults.pop()
            if isinstance(fault, Exception):
                raise fault
            return fault  # type: ignore[no-any-return]
        return True

    stream = RolloutStream(client, batches(pool, 1), keep=keep, **OPTIONS)
    with pytest.raises((TypeError, ZeroDivisionError), match=error):
        list(stream.steps(2))
    assert names(list(stream.steps(2))) == ["0a+0b"]


class App:
    """An endpoint that says what is done to it."""

    def __init__(self, pool: StubPool) -> None:
        self.done: list[str] = []
        self._pool = pool

    def pause(self) -> None:
        self.done.append(f"pause after {len(self._puts())}")

    def resume(self, policy_version: str | None = None) -> None:
        self.done.append(f"resume {policy_version} after {len(self._puts())}")

    def _puts(self) -> list[Any]:
        return [request for request in self._pool.requests if request.method == "PUT"]


def test_an_update_pauses_names_the_version_and_resumes(pool: StubPool, client: RolloutClient) -> None:
    pool.on("PUT", "/v1/runs/job/policy_version", Answer(body=RUN))
    app = App(pool)
    stream = RolloutStream(client, [], run="job", **OPTIONS)
    for expected in (1, 2):
        with stream.update(app) as version:
            assert version == expected
            assert stream.version == (None if expected == 1 else 1)
    # The pool knows the version before anything is sampled with it.
    assert app.done == ["pause after 0", "resume 1 after 1", "pause after 1", "resume 2 after 2"]
    assert stream.version == 2


def test_an_update_that_fails_leaves_all_paused_under_the_old_version(pool: StubPool, client: RolloutClient) -> None:
    app, stream = App(pool), RolloutStream(client, [], **OPTIONS)
    stream.version = 5
    with pytest.raises(ZeroDivisionError), stream.update(app):
        raise ZeroDivisionError
    assert (stream.version, app.done) == (5, ["pause after 0"])
    with stream.update(app) as version:
        assert version == 6
    assert app.done[2:] == ["resume 6 after 0"]


def test_without_an_endpoint_the_run_is_paused_in_the_pool(pool: StubPool, client: RolloutClient) -> None:
    pool.on("PUT", "/v1/runs/job/policy_version", Answer(body=RUN))
    for what in ("pause", "resume"):
        pool.on("POST", f"/v1/runs/job/{what}", Answer(body=RUN))
    with RolloutStream(client, [], run="job", **OPTIONS).update():
        asked = [request.path for request in pool.requests]
        assert asked == ["/v1/runs/job/pause"]
    assert [request.path for request in pool.requests][1:] == ["/v1/runs/job/policy_version", "/v1/runs/job/resume"]
    with pytest.raises(ValueError, match="nothing to pause"), RolloutStream(client, [], **OPTIONS).update():
        pass


async def test_for_asyncio_the_endpoint_may_be_on_the_same_loop(pool: StubPool) -> None:
    threads: list[Any] = []

    class OnTheLoop(App):
        def pause(self) -> None:
            threads.append(threading.current_thread())

    async with AsyncRolloutClient(pool.url) as client:
        stream = AsyncRolloutStream(client, [], **OPTIONS)
        async with stream.update(OnTheLoop(pool)) as version:
            assert version == 1
        assert stream.version == 1
    assert threads != [threading.current_thread()]


def test_rewards_of_a_group_are_kept_with_its_rollouts(pool: StubPool, client: RolloutClient) -> None:
    stream = RolloutStream(client, batches(pool, 1), **OPTIONS)
    accepted = {"batch_id": name_of(0), "bytes_used": 1, "bytes_left": 1}
    pool.on("POST", f"/v1/batches/{name_of(0)}/annotations", Answer(body=accepted))
    _, second = stream
    second.annotate([0.5, 1])
    second.annotate([3.0, 4.0], name="length")
    sent = [request.body["items"] for request in pool.requests if request.path.endswith("annotations")]
    assert sent == [
        [{"rollout": 2, "scalars": {"reward": 0.5}}, {"rollout": 3, "scalars": {"reward": 1.0}}],
        [{"rollout": 2, "scalars": {"length": 3.0}}, {"rollout": 3, "scalars": {"length": 4.0}}],
    ]
    with pytest.raises(ValueError, match="group =b has 2 rollouts, not 1"):
        second.annotate([1.0])
