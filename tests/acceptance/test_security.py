"""A pool as others reach it: with keys, and with nothing of a secret left in any place but memory."""

import base64
import json
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
from tests.acceptance.test_pool import receiver
from tests.support.waiting import eventually

from rolloutpool_common.outcomes import RolloutStatus
from rolloutpool_common.rendering import TINY, ChatTokenizer
from rolloutpool_common.security.api_keys import KeyScope, make_key
from rolloutpool_trainer import LocalPool, RolloutClient, callback_app, verify_push
from rolloutpool_trainer.endpoint.server import serve_callback
from rolloutpool_trainer.errors import BatchRejected, NotFound, Unauthorized
from rolloutpool_trainer.testing import ScriptedPolicy, calculator_prompts

CALLBACK_KEY = "MARKER-callback-key"
OTHER_KEY = "MARKER-other-key"
WEBHOOK_SECRET = "MARKER-webhook-secret"
MARKER, VISIBLE = b"MARKER", b"a-label-that-is-no-secret"
PROMPT = "PROMPTMARK"
"""In what is said: it is kept with the rollouts, and belongs in no ticket, event or log."""
ROOT = Path(__file__).parents[2]


def items(n: int, **more: Any) -> list[dict[str, Any]]:
    return [
        {"messages": [{"role": "user", "content": f"{text} {PROMPT}"}], **more}
        for text in calculator_prompts(n, seed=3)
    ]


def everything_in(url: str) -> Iterator[tuple[str, bytes]]:
    """Each key with each value that Redis holds, as plain as it gets."""
    with redis.Redis.from_url(url) as raw:
        for key in raw.scan_iter("*"):
            for value in values_of(raw, key):
                yield key.decode(errors="replace"), key + b" " + expanded(value)


def values_of(raw: Any, key: bytes) -> list[bytes]:
    """All parts of one key's value."""
    match raw.type(key):
        case b"string":
            return [raw.get(key)]
        case b"hash":
            return [part for pair in raw.hgetall(key).items() for part in pair]
        case b"list":
            return list(raw.lrange(key, 0, -1))
        case b"set":
            return list(raw.smembers(key))
        case b"zset":
            return list(raw.zrange(key, 0, -1))
        case b"stream":
            return [part for _, fields in raw.xrange(key) for pair in fields.items() for part in pair]
        case other:
            raise AssertionError(f"{key!r} is a {other!r}, which this test cannot look into")


def expanded(value: bytes) -> bytes:
    try:
        return zlib.decompress(value)
    except zlib.error:
        return value


def everything_under(folder: Path) -> Iterator[tuple[str, bytes]]:
    for file in folder.rglob("*"):
        if file.is_file():
            yield str(file), file.read_bytes()


def marked(found: Iterator[tuple[str, bytes]]) -> list[str]:
    """Where a secret shows; fails where even what is no secret does not."""
    places = list(found)
    assert any(VISIBLE in content for _, content in places)
    return [place for place, content in places if MARKER in content]


def tickets_in(url: str) -> list[bytes]:
    """What Celery's messages carry, as a reader of the queue would see it."""
    with redis.Redis.from_url(url) as raw:
        found = [json.loads(message) for message in raw.lrange("rollouts:rollouts.default", 0, -1)]
    return [base64.b64decode(message["body"]) + json.dumps(message["headers"]).encode() for message in found]


@contextmanager
def overheard(url: str) -> Iterator[list[bytes]]:
    """All that is published in this Redis while the block lasts: Celery's events and remote control."""
    heard: list[bytes] = []

    def hear(published: dict[str, Any]) -> None:
        message = json.loads(published["data"])
        heard.append(published["data"] + base64.b64decode(message.get("body", "")))

    with redis.Redis.from_url(url) as raw, raw.pubsub() as pubsub:
        pubsub.psubscribe(**{"*": hear})
        listening = pubsub.run_in_thread(sleep_time=0.1)
        try:
            yield heard
        finally:
            listening.stop()
            listening.join()


def test_secrets_are_in_memory_alone(tokenizer: ChatTokenizer, tmp_path: Path) -> None:
    env = {
        "ROLLOUTPOOL_LOG_LEVEL": "debug",
        "ROLLOUTPOOL_TRAINER_ATTEMPTS": "1",
        "ROLLOUTPOOL_INFRA_RETRIES": "1",
        "ROLLOUTPOOL_PLUGINS": "tests.support.plugins",
        "PYTHONPATH": str(ROOT),
    }
    app = callback_app(ScriptedPolicy(tokenizer), tokenizer=tokenizer, api_key=CALLBACK_KEY)
    with (
        LocalPool(workers=0, state=tmp_path, tokenizers=[TINY], env=env) as pool,
        pool.client() as client,
        serve_callback(app, [0]) as served,
        receiver(lambda n: 500 if n == 0 else 204) as (webhook, pushed),
        overheard(pool.redis_url) as events,
    ):
        assert stat.S_IMODE(pool.secrets_file.stat().st_mode) == 0o600
        batch = client.submit(
            [
                *items(4),
                *items(2, callback_api_key=OTHER_KEY),
                *items(1, callback_api_key=OTHER_KEY, server_url="http://127.0.0.1:9"),
                *items(1, tools=["add"], max_turns=1),
                *items(1, agent="clumsy"),
            ],
            defaults={"tokenizer_name": TINY, "callback_api_key": CALLBACK_KEY},
            trainer=served.url,
            labels={"run": VISIBLE.decode()},
            delivery={"callback_url": webhook, "secret": WEBHOOK_SECRET},
        )
        rejected = httpx.post(
            f"{pool.url}/v1/batches",
            json={"rollouts": [{"callback_api_key": CALLBACK_KEY, "messages": []}], "delivery": {"secret": "MARKER"}},
        )
        assert rejected.status_code == 422
        assert "MARKER" not in rejected.text

        # Tickets wait in the broker: no worker has been started. What names an agent waits for one that has it.
        eventually(lambda: len(tickets_in(pool.redis_url)) == 8)
        assert marked(everything_in(pool.redis_url)) == []
        for ticket in tickets_in(pool.redis_url):
            assert batch.batch_id.encode() in ticket
            assert PROMPT.encode() not in ticket
            assert MARKER not in ticket
        pool.wait_flower()
        user, _, password = pool.flower_auth.partition(":")

        def flower_tasks() -> httpx.Response:
            return httpx.get(f"{pool.flower_url}/api/tasks", params={"limit": 1000}, auth=(user, password), timeout=30)

        def listens() -> bool:
            # It answers before it listens, and events that nobody hears are gone.
            probe = client.submit(
                items(1), defaults={"tokenizer_name": TINY, "callback_api_key": CALLBACK_KEY}, trainer=served.url
            )
            return probe.batch_id in flower_tasks().text

        eventually(listens, seconds=60)
        pool.add_worker()
        results = list(batch.results())
        eventually(lambda: batch.status().delivery.get("delivered") == len(results), seconds=60)
        # They are good for something: who has the right key is answered to, and the pushes are signed.
        assert {r.status for r in results[:4]} | {r.status for r in results} == {
            RolloutStatus.COMPLETED,
            RolloutStatus.FAILED,
        }
        assert sum(r.status is RolloutStatus.COMPLETED for r in results) == 5
        assert len({verify_push(WEBHOOK_SECRET, headers, body).data.uid for headers, body in pushed}) == 9
        assert MARKER not in b"".join(body for _, body in pushed)
        v1 = client.rollout(
            {**items(1)[0], "rollout_id": "v1", "server_url": served.url, "sampling_params": {}, "tokenizer_name": TINY}
            | {"callback_api_key": CALLBACK_KEY}
        )
        assert v1.status == "COMPLETED"
        views = [client.get_rollout(r.uid).model_dump_json() for r in results]
        eventually(lambda: batch.batch_id in flower_tasks().text, seconds=60)
        tickets = flower_tasks()
        assert "MARKER" not in tickets.text + "".join(views) + str(results) + v1.model_dump_json()
        assert marked(everything_in(pool.redis_url)) == []
        # The append-only file has every value that ever was in Redis; the logs are those of all processes.
        files = dict(everything_under(tmp_path))
        assert any("appendonly" in name for name in files)
        assert any(name.endswith("worker-1.log") for name in files)
        assert marked(iter(files.items())) == []
        logs = b"".join(content for name, content in files.items() if name.endswith(".log"))
        assert b"Traceback" in logs
        assert b"RuntimeError" in logs
        eventually(lambda: any(b"task-succeeded" in event for event in events))
        for content in (logs, b"".join(events), tickets.content):
            assert batch.batch_id.encode() in content
            assert PROMPT.encode() not in content
            assert MARKER not in content


@pytest.fixture(scope="module")
def keys() -> dict[str, tuple[str, str]]:
    """Name to key and entry."""
    made = {name: make_key(name, [KeyScope.SUBMIT, KeyScope.READ]) for name in ("ann", "bob")}
    return {name: (key, entry.entry()) for name, (key, entry) in made.items()}


def test_a_pool_for_others(tokenizer: ChatTokenizer, keys: dict[str, tuple[str, str]]) -> None:
    env = {
        "ROLLOUTPOOL_API_KEYS": ",".join(entry for _, entry in keys.values()),
        "ROLLOUTPOOL_ALLOWED_TARGETS": "127.0.0.1",
    }
    with LocalPool(workers=1, host="0.0.0.0", flower=False, tokenizers=[TINY], env=env) as pool:
        assert httpx.get(f"{pool.url}/health").status_code == 200
        for path in ("/tools", "/v1/workers", "/v1/batches/x"):
            assert httpx.get(f"{pool.url}{path}").status_code == 401
        app = callback_app(ScriptedPolicy(tokenizer), tokenizer=tokenizer, tools=pool.url, pool_api_key=keys["ann"][0])
        with (
            serve_callback(app, [0]) as served,
            RolloutClient(pool.url, keys["ann"][0]) as ann,
            RolloutClient(pool.url, keys["bob"][0]) as bob,
            pool.client() as operator,
        ):
            batch = ann.submit(items(4), defaults={"tokenizer_name": TINY}, trainer=served.url)
            assert {result.status for result in batch.results()} == {RolloutStatus.COMPLETED}
            assert operator.batch(batch.batch_id).status().total == 4
            assert len(operator.workers()) == 1
            with pytest.raises(Unauthorized, match="admin"):
                ann.workers()
            with pytest.raises(NotFound):
                bob.batch(batch.batch_id).status()
            for url, why in (("http://10.0.0.1", "ROLLOUTPOOL_ALLOWED_TARGETS"), ("http://169.254.169.254", "never")):
                with pytest.raises(BatchRejected, match=why):
                    ann.submit(items(1), defaults={"tokenizer_name": TINY}, trainer=url)
