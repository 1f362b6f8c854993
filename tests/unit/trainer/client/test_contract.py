"""What each of the two Python clients does, against a scripted API on a real socket.

A method asks the pool one thing, and returns what the pool said. What is lost on the way is asked for again, under the
same key; each result comes once; and each refusal is an error of its own type. Both clients have the same methods.
"""

import inspect
import pickle
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.support.api_documents import BATCH, accepted, page, status, worker
from tests.support.both_clients import opened
from tests.support.client_calls import CALLS, MESSAGES, RESULTS, ROWS
from tests.support.stub_pool import Answer, StubPool

from rolloutpool_common.outcomes import RolloutStatus
from rolloutpool_common.protocol.batch import RolloutItem, TrainerPorts
from rolloutpool_common.protocol.groups import GroupVerdict
from rolloutpool_common.protocol.messages import Message
from rolloutpool_trainer import errors
from rolloutpool_trainer.client.aio import AsyncRolloutClient
from rolloutpool_trainer.client.aio_batch import AsyncBatch, AsyncTrainableGroup
from rolloutpool_trainer.client.aio_stream import AsyncRolloutStream
from rolloutpool_trainer.client.results import FinishedRollout
from rolloutpool_trainer.client.sync import RolloutClient
from rolloutpool_trainer.client.sync_batch import Batch, TrainableGroup
from rolloutpool_trainer.client.sync_stream import RolloutStream

NOT_AWAITED = {"batch", "judge", "load_state_dict", "state_dict"}
"""What asks the pool for nothing."""

NO_REQUEST = {"batch", "ask", "close", "results", "wait", "submit"}
"""What asks for nothing by itself, and what has cases of its own below."""
DELIVERY = {"callback_url": "http://h/push", "secret": "12345678"}


@pytest.fixture
def hasty(pool: StubPool, kind: str) -> Iterator[RolloutClient]:
    """A client without patience."""
    with opened(kind, pool.url, timeout=0.0) as made:
        yield made


def methods(kind: type[Any]) -> dict[str, Callable[..., Any]]:
    """The public ones, also those that it inherits."""
    found = inspect.getmembers(kind, inspect.isfunction)
    return {name: method for name, method in found if not name.startswith("_")}


def surface(kind: type[Any]) -> dict[str, list[tuple[str, Any, str]]]:
    """Public methods with names, defaults and annotations of their parameters; names of classes have no `Async`."""

    def named(annotation: Any) -> str:
        return re.sub(r"(?:[\w.]+\.)?(?:Async|Sync)?(\w+)", r"\1", inspect.formatannotation(annotation))

    return {
        name: [(p.name, p.default, named(p.annotation)) for p in inspect.signature(method).parameters.values()]
        for name, method in methods(kind).items()
    }


@pytest.mark.parametrize(
    ("blocking", "awaited"),
    [
        (RolloutClient, AsyncRolloutClient),
        (Batch, AsyncBatch),
        (RolloutStream, AsyncRolloutStream),
        (TrainableGroup, AsyncTrainableGroup),
    ],
)
def test_both_have_the_same_methods_and_only_one_blocks(blocking: type[Any], awaited: type[Any]) -> None:
    assert surface(blocking) == surface(awaited)
    for name, method in methods(awaited).items():
        real = inspect.unwrap(method)
        if name not in NOT_AWAITED:
            assert inspect.iscoroutinefunction(real) or inspect.isasyncgenfunction(real), name


def test_each_method_has_a_case() -> None:
    assert {*methods(RolloutClient), *methods(Batch)} == {*CALLS, *NO_REQUEST}


@pytest.mark.parametrize("method", CALLS)
def test_a_method_asks_for_one_thing_and_returns_what_the_pool_says(
    pool: StubPool, client: RolloutClient, method: str
) -> None:
    call, asked, body, answer, returned = CALLS[method]
    verb, _, target = asked.partition(" ")
    path, _, query = target.partition("?")
    pool.on(verb, path, Answer(body=answer))
    pool.on("GET", RESULTS, Answer(body=page(complete=True)))
    assert call(client) == returned
    (seen, *_) = pool.requests
    seen_path, _, seen_query = seen.path.partition("?")
    assert (seen.method, seen_path) == (verb, path)
    assert set(query.split("&")) - {""} <= set(seen_query.split("&"))
    assert seen.body == body
    assert seen.headers["Authorization"] == "Bearer key"


def test_a_table_of_many_pages_is_one(pool: StubPool, client: RolloutClient) -> None:
    first, last = ({**ROWS, "columns": {"index": [index]}} for index in range(2))
    pages = Answer(body=first | {"next_cursor": "7"}), Answer(body=last | {"next_cursor": None})
    pool.on("GET", f"/v1/batches/{BATCH}/rollouts", *pages)
    assert client.batch(BATCH).table(["index"]) == {"index": [0, 1]}
    assert ["cursor=7" in request.path for request in pool.requests] == [False, True]


def test_submit_sends_one_document(pool: StubPool, client: RolloutClient) -> None:
    pool.on("POST", "/v1/batches", Answer(202, accepted()))
    batch = client.submit(
        [{"messages": MESSAGES, "n": 2}],
        defaults={"tokenizer_name": "t"},
        trainer={"host": "h", "workers": 2},
        priority="high",
        labels={"run": "1"},
        run="job7",
        weight=3,
        group={"min_usable": 2},
        delivery=DELIVERY,
        idempotency_key="k",
    )
    (request,) = pool.requests
    assert batch.batch_id == BATCH
    assert batch.accepted is not None
    assert batch.accepted.rollouts == [f"{BATCH}-0", f"{BATCH}-1"]
    assert request.headers["Idempotency-Key"] == "k"
    assert request.headers["Authorization"] == "Bearer key"
    assert request.headers["Content-Type"] == "application/json"
    assert request.body == {
        "rollouts": [{"messages": MESSAGES, "n": 2}],
        "defaults": {"tokenizer_name": "t"},
        "trainer": {"host": "h", "workers": 2},
        "priority": "high",
        "labels": {"run": "1"},
        "run": "job7",
        "weight": 3,
        "group": {"min_usable": 2},
        "delivery": DELIVERY,
    }


def test_models_are_sent_as_far_as_they_were_set(pool: StubPool, client: RolloutClient) -> None:
    pool.on("POST", "/v1/batches", Answer(202, accepted()))
    item = RolloutItem(messages=[Message(role="user", content="hi")], max_turns=3)
    client.submit([item], trainer=TrainerPorts(host="h"))
    body = pool.requests[0].body
    assert body["rollouts"] == [{"messages": [{"role": "user", "content": "hi"}], "max_turns": 3}]
    assert body["trainer"] == {"host": "h"}


def test_a_lost_submission_is_sent_again_under_the_same_key(pool: StubPool, client: RolloutClient) -> None:
    unavailable = Answer(503, {"error": {"message": "Redis is away"}}, {"Retry-After": "0"})
    pool.on("POST", "/v1/batches", Answer(drop=True), unavailable, Answer(202, accepted()))
    client.submit([{"messages": MESSAGES}])
    keys = [request.headers["Idempotency-Key"] for request in pool.requests]
    bodies = [request.body for request in pool.requests]
    assert len(keys) == 3
    assert len(set(keys)) == 1
    assert bodies[0] == bodies[1] == bodies[2]


def test_results_come_once_each_whatever_is_repeated(pool: StubPool, client: RolloutClient) -> None:
    again = page(0, 1)
    pool.on("GET", RESULTS, Answer(body=page(0)), Answer(body=again), Answer(body=page(2, complete=True)))
    results = list(client.batch(BATCH).results())
    assert [result.rollout_id for result in results] == ["r0", "r1", "r2"]
    assert [result.cursor for result in results] == ["0-0", "1-0", "2-0"]
    assert results[0].status is RolloutStatus.COMPLETED
    assert results[0].samples[0].response_ids == [3, 4]


def test_results_live_through_a_restart_of_the_api(pool: StubPool, client: RolloutClient) -> None:
    pool.on("GET", RESULTS, Answer(body=page(0)), Answer(drop=True), Answer(502), Answer(body=page(1, complete=True)))
    assert [result.index for result in client.batch(BATCH).results()] == [0, 1]


def test_results_that_do_not_come_in_time(pool: StubPool, client: RolloutClient) -> None:
    pool.on("GET", RESULTS, Answer(body=page(0)))
    taken: list[FinishedRollout] = []
    with pytest.raises(TimeoutError, match="has not ended within 0 s"):
        taken.extend(client.batch(BATCH).results(timeout=0))
    assert len(pool.requests) == 1
    assert "wait=0" in pool.requests[0].path
    with pytest.raises(TimeoutError, match=r"within 0\.2 s"):
        taken.extend(client.batch(BATCH).results(timeout=0.2))
    assert "wait=0." in pool.requests[1].path
    assert [result.uid for result in taken] == [f"{BATCH}-0"] * 2
    for nonsense in (-1, float("nan")):
        with pytest.raises(ValueError, match="at least 0 seconds"):
            list(client.batch(BATCH).results(timeout=nonsense))


def test_results_that_come_in_time(pool: StubPool, client: RolloutClient) -> None:
    pool.on("GET", RESULTS, Answer(body=page(0)), Answer(body=page(0, 1, complete=True)))
    assert len(list(client.batch(BATCH).results(timeout=20))) == 2


def test_progress_without_a_terminal_changes_nothing(
    pool: StubPool, client: RolloutClient, capsys: pytest.CaptureFixture[str]
) -> None:
    pool.on("GET", f"/v1/batches/{BATCH}", Answer(body=status()))
    pool.on("GET", RESULTS, Answer(body=page(0, 1, complete=True)))
    assert len(list(client.batch(BATCH).results(progress=True))) == 2
    assert capsys.readouterr() == ("", "")


def test_wait_returns_the_final_state(pool: StubPool, client: RolloutClient) -> None:
    pool.on("GET", f"/v1/batches/{BATCH}", Answer(body=status(state="running")), Answer(body=status()))
    assert client.batch(BATCH).wait().progress == 1.0
    assert len(pool.requests) == 2


def test_wait_gives_up_in_time(pool: StubPool, client: RolloutClient) -> None:
    pool.on("GET", f"/v1/batches/{BATCH}", Answer(body=status(state="running")))
    with pytest.raises(TimeoutError, match="not ended within 0 s"):
        client.batch(BATCH).wait(timeout=0)


def test_a_newer_pool_may_say_more(pool: StubPool, client: RolloutClient) -> None:
    new = {"not_known_yet": {"a": [1]}}
    pool.on("GET", "/v1/workers", Answer(body={"workers": [worker(**new)], "queues": {}} | new))
    group = {"group": "g", "size": 2, "completed": 2, "failed": 0, "cancelled": 0, "expired": 0, "verdict": "usable"}
    pool.on("GET", f"/v1/batches/{BATCH}/groups", Answer(body={"groups": [group | new]} | new))
    pool.on("GET", "/v1/dead-letters", Answer(body={"rollouts": ["u"], "pushes": []} | new))
    check = {"server_url": "http://t", "ok": True, "detail": "answered 200", "ms": 1.5}
    pool.on("POST", "/v1/preflight", Answer(body={"worker": "w", "endpoints": [check | new]} | new))
    assert client.workers()[0].slots == 256
    assert client.batch(BATCH).groups()[0].verdict is GroupVerdict.USABLE
    assert client.dead_letters().rollouts == ["u"]
    assert client.preflight(["http://t"])[0].ok


def test_answers_can_still_be_read_like_dictionaries(pool: StubPool, client: RolloutClient) -> None:
    pool.on("GET", "/v1/workers", Answer(body={"workers": [worker(pid=7)]}))
    (found,) = client.workers()
    assert found["pid"] == 7
    with pytest.raises(KeyError, match="model_fields"):
        found["model_fields"]


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        (Answer(401, {"error": {"message": "no key"}}), errors.Unauthorized, "no key"),
        (Answer(403, {"error": {"message": "not yours"}}), errors.Unauthorized, "not yours"),
        (Answer(404, {"error": {"message": "no such batch"}}), errors.NotFound, "no such batch"),
        (Answer(404, {"detail": "Not Found"}), errors.UnexpectedAnswer, "404, Not Found"),
        (Answer(409, {"error": {"message": "used", "batch_id": BATCH}}), errors.IdempotencyConflict, "used"),
        (Answer(409, {"detail": "used before"}), errors.IdempotencyConflict, "used before"),
        (Answer(409, {"error": {"message": "has not ended"}}), errors.RequestRefused, "has not ended"),
        (Answer(400, {"error": {"message": "bad cursor"}}), errors.RequestRefused, "bad cursor"),
        (Answer(503, {"error": {"message": "later"}}), errors.PoolUnavailable, r"answered 503 \(later\), for"),
        (Answer(429, {"error": {"message": "full"}}), errors.PoolUnavailable, r"answered 429 \(full\), for"),
        (Answer(drop=True), errors.PoolUnavailable, "no answer"),
        (Answer(500, b"oops"), errors.UnexpectedAnswer, "500"),
        (Answer(302, b"", {"Location": "http://elsewhere"}), errors.UnexpectedAnswer, "302"),
        (Answer(200, b"<html>"), errors.UnexpectedAnswer, "not the pool's"),
        (Answer(200, {"batch_id": 7}), errors.UnexpectedAnswer, "not the pool's"),
    ],
)
def test_errors_have_types(
    pool: StubPool, hasty: RolloutClient, answer: Answer, error: type[errors.ClientError], message: str
) -> None:
    pool.on("GET", f"/v1/batches/{BATCH}", answer)
    with pytest.raises(error, match=message) as caught:
        hasty.batch(BATCH).status()
    assert pool.url in str(caught.value)
    assert type(caught.value) is error
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.status) == (str(caught.value), caught.value.status)


def test_a_v1_refusal_does_not_repeat_the_prompt(pool: StubPool, client: RolloutClient) -> None:
    detail = [{"loc": ["body", "messages"], "msg": "too short", "input": "secret prompt"}]
    pool.on("POST", "/rollout", Answer(422, {"detail": detail}))
    with pytest.raises(errors.RequestRefused, match=r"body\.messages: too short") as caught:
        client.rollout({})
    assert "secret" not in str(caught.value)


def test_no_proxy_of_the_environment_is_used(pool: StubPool, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    pool.on("GET", "/health", Answer(body={"status": "healthy"}))
    with opened(kind, pool.url, timeout=0) as made:
        assert made.health().status == "healthy"
