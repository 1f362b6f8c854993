"""Whatever another build announces is read, or listed as unreadable with the reason."""

from typing import Any

import orjson
import pytest
from fakeredis import FakeAsyncRedis
from tests.support.batches import announce

from rolloutpool_common.protocol.workers import UnreadableWorker, Worker, WorkerRole
from rolloutpool_common.store import Store, keys
from rolloutpool_common.store.announcements import WIRE_VERSION, offer_of, read_announcement

FIRST_RELEASE: dict[str, Any] = {
    **{"host": "h", "pid": 7, "slots": 32, "agents": ["tool_calls"], "termination_strategies": ["task_completion"]},
    **{"tools": [{"type": "function", "function": {"name": "add", "description": "", "parameters": {}}}]},
    **{"tokenizers": {"t": {"tokenizer_sha256": "x"}}, "versions": {"python": "3.11"}, "started_at": 1_700_000_000.5},
}
"""As dd99e53 wrote it: no role, no environments, no wire version."""


def read(about: Any, **fields: bytes) -> Worker | UnreadableWorker:
    data = about if isinstance(about, bytes) else orjson.dumps(about)
    named = {name.encode(): value for name, value in fields.items()}
    return read_announcement("w", {b"about": data, **named}, 1.0, subscribed=True)


def test_an_announcement_of_the_first_release_gets_the_defaults_of_what_it_lacks() -> None:
    worker = read(FIRST_RELEASE, running=b"3")
    assert isinstance(worker, Worker)
    assert (worker.wire, worker.role, worker.running, worker.tools) == (0, WorkerRole.SHARED, 3, ["add"])
    assert (worker.environments, worker.graders, worker.draining) == ([], [], False)
    assert offer_of(worker) == []


def test_fields_that_are_not_known_yet_are_ignored() -> None:
    later = {**FIRST_RELEASE, "wire": WIRE_VERSION, "gpus": 8, "tools": [{**FIRST_RELEASE["tools"][0], "cost": 1}]}
    assert isinstance(read(later), Worker)


@pytest.mark.parametrize(
    ("about", "why"),
    [
        ({**FIRST_RELEASE, "wire": WIRE_VERSION + 1}, "update the API"),
        ({**FIRST_RELEASE, "wire": "two"}, "wire"),
        ({name: value for name, value in FIRST_RELEASE.items() if name != "slots"}, "slots: Field required"),
        ({**FIRST_RELEASE, "slots": "many"}, "slots"),
        ({**FIRST_RELEASE, "role": "captain"}, "role"),
        ({**FIRST_RELEASE, "tools": ["add"]}, "tools.0"),
        ({**FIRST_RELEASE, "started_at": 1e300}, "OverflowError"),
        ([], "it"),
        (b"nonsense", "JSONDecodeError"),
        (b"\xff\xfe", "JSONDecodeError"),
    ],
    ids=lambda value: None if not isinstance(value, str) else value,
)
def test_what_cannot_be_read_says_why(about: Any, why: str) -> None:
    found = read(about)
    assert isinstance(found, UnreadableWorker)
    assert why in found.why
    assert len(found.why) <= 300


@pytest.mark.parametrize("field", ["running", "tokenizers", "loading"])
def test_a_beat_that_cannot_be_read_is_as_bad_as_an_announcement(field: str) -> None:
    assert isinstance(read(FIRST_RELEASE, **{field: b"nonsense"}), UnreadableWorker)


async def test_one_that_cannot_be_read_hides_no_other(store: Store, raw: FakeAsyncRedis) -> None:
    await announce(store, "ours")
    await announce(store, "strange")
    await raw.hset(keys.worker("strange"), "about", b"{")
    workers, unreadable = await store.workers.listed()
    assert [worker.worker_id for worker in workers] == ["ours"]
    assert [one.worker_id for one in unreadable] == ["strange"]
    assert 0 <= unreadable[0].last_beat_age_s < 60
    assert [worker.worker_id for worker in await store.workers.known()] == ["ours"]
    assert workers[0].wire == WIRE_VERSION
