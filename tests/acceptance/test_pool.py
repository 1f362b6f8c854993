"""The main job on real processes: a trainer submits, exact rollouts come back, by every way there is."""

import base64
import re
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
from tests.support.served_policy import ServedPolicy
from tests.support.threaded_server import QuietHandler, serving
from tests.support.waiting import eventually

from rolloutpool_common.outcomes import RolloutStatus
from rolloutpool_common.protocol.result import RolloutResult
from rolloutpool_common.rendering import TINY, ChatTokenizer
from rolloutpool_trainer import LocalPool, RolloutClient, callback_app, verify_push
from rolloutpool_trainer.endpoint.app import CallbackApp
from rolloutpool_trainer.endpoint.server import serve_callback
from rolloutpool_trainer.testing import ScriptedPolicy, calculator_prompts

DEFAULTS = {"tokenizer_name": TINY, "idempotent": True}


def items(n: int, group_size: int = 8) -> list[dict[str, Any]]:
    """Calculator rollouts in groups."""
    questions = calculator_prompts(n, seed=7)
    return [{"messages": [{"role": "user", "content": questions[i]}], "group": f"g{i // group_size}"} for i in range(n)]


def assert_exact(app: CallbackApp, results: Iterable[RolloutResult]) -> None:
    """Each result's ids, mask and log-probs equal what the trainer itself kept, token by token."""
    for result in results:
        assert result.status is RolloutStatus.COMPLETED, result.failure
        session = app.get_session(result.rollout_id, result.uid)
        assert session.mismatches == 0
        assert [s.prompt_ids for s in result.samples] == [s.prompt_ids for s in session.samples]
        assert [s.response_ids for s in result.samples] == [s.response_ids for s in session.samples]
        assert [s.response_mask for s in result.samples] == [s.response_mask for s in session.samples]
        assert [s.response_logprobs for s in result.samples] == [s.response_logprobs for s in session.samples]


def test_a_batch_of_200_by_poll(client: RolloutClient, trainer: ServedPolicy) -> None:
    batch = client.submit(items(200), defaults=DEFAULTS, trainer=trainer.urls, labels={"step": "12"})
    results = list(batch.results())
    assert len({r.uid for r in results}) == len(results) == 200
    assert_exact(trainer.app, results)
    assert not trainer.app.sampling_log.repeated()
    assert {r.alignment for r in results} == {"exact"}
    # Both workers took part, and a group stayed on one port.
    assert len({r.worker for r in results}) == 2
    status = batch.status()
    assert status.counts[RolloutStatus.COMPLETED] == 200
    assert status.alignment == {"exact": 200}
    assert status.sampled_tokens == sum(sum(s.response_mask) for r in results for s in r.samples)
    assert status.labels == {"step": "12"}


@contextmanager
def receiver(answer: Callable[[int], int]) -> Iterator[tuple[str, list[tuple[dict[str, str], bytes]]]]:
    """A webhook on a real socket; `answer` gives the status of the nth request."""
    taken: list[tuple[dict[str, str], bytes]] = []

    class Handler(QuietHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            status = answer(len(taken))
            taken.append((dict(self.headers.items()), body))
            self.send_response(status)
            self.send_header("content-length", "0")
            self.end_headers()

    with serving(Handler) as port:
        yield f"http://127.0.0.1:{port}/results", taken


def test_a_batch_of_200_by_push(client: RolloutClient, trainer: ServedPolicy) -> None:
    secret = "whsec_" + base64.b64encode(b"thirty-two bytes of signing key!").decode()
    # The first three are refused: pushed again, under the same id.
    with receiver(lambda n: 500 if n < 3 else 204) as (url, taken):
        batch = client.submit(
            items(200), defaults=DEFAULTS, trainer=trainer.urls, delivery={"callback_url": url, "secret": secret}
        )
        eventually(lambda: batch.status().delivery.get("delivered") == 200, seconds=60)
        events = [verify_push(secret, headers, body) for headers, body in taken]
    pushed = {event.data.uid: event.data for event in events}
    assert len(pushed) == 200
    assert len(events) == 203
    assert_exact(trainer.app, pushed.values())
    assert {r.uid for r in batch.results()} == set(pushed)


def test_v1_synchronous(pool: LocalPool, client: RolloutClient, trainer: ServedPolicy) -> None:
    request: dict[str, Any] = {
        "rollout_id": f"job-step1-idx0-{uuid.uuid4().hex[:8]}",
        "server_url": trainer.urls[0] + "/",
        "messages": [{"role": "user", "content": "Calculate (15 + 23) * 4"}],
        "sampling_params": {"temperature": 0.7},
        "tokenizer_name": TINY,
    }
    answer = httpx.post(f"{pool.url}/rollout", json=request, timeout=60)
    assert answer.status_code == 200
    body = answer.json()
    assert list(body) == [
        *("rollout_id", "status", "final_messages", "finish_reason", "error_message", "metrics", "extra_fields")
    ]
    assert (body["status"], body["finish_reason"]) == ("COMPLETED", "stop")
    assert body["metrics"]["num_llm_calls"] == trainer.app.get_session(request["rollout_id"]).turns
    assert body["final_messages"][0]["role"] == "user"
    # The same again joins: the same answer, nothing sampled again.
    assert httpx.post(f"{pool.url}/rollout", json=request, timeout=60).content == answer.content
    assert not trainer.app.sampling_log.repeated()
    other = httpx.post(f"{pool.url}/rollout", json={**request, "max_turns": 3}, timeout=60)
    assert other.status_code == 409
    # What v1 answers is quirky; the record behind it is whole.
    view = client.get_rollout(request["rollout_id"])
    assert view.result is not None
    assert_exact(trainer.app, [RolloutResult.model_validate(view.result)])


def count_in(ticket: dict[str, Any]) -> int:
    """How many rollouts failed, by what Flower shows of a failed task."""
    said = re.search(
        r"RolloutsFailed\('(\d+) of \d+ rollouts failed: (b\w+-\d+ infra tokenizer_mismatch(, |'\)))+",
        ticket["exception"],
    )
    assert said is not None, ticket["exception"]
    return int(said[1])


def test_flower_shows_the_tickets(pool: LocalPool, client: RolloutClient, trainer: ServedPolicy) -> None:
    pool.wait_flower()
    user, _, password = pool.flower_auth.partition(":")
    with httpx.Client(base_url=pool.flower_url or "", auth=(user, password), timeout=30) as flower:
        assert flower.get("/").status_code == 200

        def listens() -> bool:
            # It answers before it listens, and events that nobody hears are gone.
            first = client.submit(items(1), defaults=DEFAULTS, trainer=trainer.urls)
            first.wait()
            return first.batch_id in flower.get("/api/tasks", params={"limit": 5000}).text

        eventually(listens, seconds=60)
        batch = client.submit(items(16), defaults=DEFAULTS, trainer=trainer.urls)
        batch.wait()

        def tickets(of: str = batch.batch_id, state: str = "SUCCESS") -> list[dict[str, Any]]:
            found = flower.get("/api/tasks", params={"limit": 5000}).json().values()
            return [t for t in found if of in (t["args"] or "") and t["state"] == state]

        def shown() -> list[int]:
            """Each rollout's index, once for every ticket that brought it."""
            found = [re.search(r"index=([0-9,]+) group=\"g", ticket["args"]) for ticket in tickets()]
            return sorted(int(index) for match in found if match for index in match[1].split(","))

        eventually(lambda: shown() == list(range(16)), seconds=30)
        assert all("Calculate" not in str(t) for t in tickets())
        assert {t["name"] for t in tickets()} == {f"batch {batch.batch_id}"}

        # A ticket whose rollouts failed is a failed task, and says how many.
        declared = {**DEFAULTS, "declared_tokenizer": {"tokenizer_sha256": "0" * 64}}
        failing = client.submit(items(2), defaults=declared, trainer=trainer.urls)
        failing.wait()
        eventually(lambda: sum(count_in(t) for t in tickets(failing.batch_id, "FAILURE")) == 2, seconds=30)
        assert tickets(failing.batch_id) == []
        # One whose rollouts went back to the queue is neither done nor failed.
        put_off = client.submit(items(16), defaults=DEFAULTS, trainer="http://127.0.0.1:9")
        eventually(lambda: tickets(put_off.batch_id, "RETRY"), seconds=60)
        assert tickets(put_off.batch_id) == []
        put_off.cancel()
        # It shows, and changes nothing.
        ordered = [f"/api/worker/shutdown/{t['worker']}" for t in tickets()[:1]]
        ordered += [f"/api/task/revoke/{t['uuid']}" for t in tickets()[:1]]
        assert [flower.post(order).status_code for order in ordered] == [403, 403]
    assert httpx.get(f"{pool.flower_url}/api/tasks").status_code == 401


def warm(client: RolloutClient, trainer: CallbackApp, url: str) -> int:
    """Model calls until both workers have taken work; a worker is known a moment before it takes any."""
    seen: set[str | None] = set()

    def both() -> bool:
        seen.update(r.worker for r in client.submit(items(8), defaults=DEFAULTS, trainer=url).results())
        return len(seen) == 2

    eventually(both, seconds=60)
    return len(list(trainer.sampling_log))


def test_sigterm_drains(tokenizer: ChatTokenizer) -> None:
    slow = ScriptedPolicy(tokenizer, latency=0.3)
    with LocalPool(workers=2, flower=False, tokenizers=[TINY]) as pool, pool.client() as client:
        app = callback_app(slow, tokenizer=tokenizer, tools=pool.url)
        with serve_callback(app, [0]) as served:
            calls = warm(client, app, served.url)
            # Not idempotent: a turn that the drain left ambiguous would fail.
            batch = client.submit(items(48), defaults={"tokenizer_name": TINY}, trainer=served.url)
            eventually(lambda: len(list(app.sampling_log)) >= calls + 24, seconds=30)
            pool.stop_worker(0)
            results = list(batch.results())
        assert_exact(app, results)
        assert not app.sampling_log.repeated()
        assert {r.attempt for r in results} == {1, 2}


def test_accepted_work_survives_the_whole_pool(tokenizer: ChatTokenizer, tmp_path: Any) -> None:
    slow = ScriptedPolicy(tokenizer, latency=0.2)
    app = callback_app(slow, tokenizer=tokenizer)
    with serve_callback(app, [0]) as served:
        with LocalPool(workers=1, flower=False, state=tmp_path, tokenizers=[TINY]) as pool, pool.client() as client:
            batch = client.submit(items(40), defaults=DEFAULTS, trainer=served.url)
            eventually(lambda: len(list(app.sampling_log)) >= 20, seconds=30)
            pool.kill()
        with LocalPool(workers=1, flower=False, state=tmp_path, tokenizers=[TINY]) as pool, pool.client() as client:
            results = list(client.batch(batch.batch_id).results())
    assert len(results) == 40
    assert_exact(app, results)
    assert not app.sampling_log.repeated()
