"""A parent's reports are in Redis at once, or as soon as Redis is back."""

import signal
import sys
import time
from collections.abc import Callable, Iterator

import pytest
from redis import Redis
from tests.support.durable_redis import durable_redis

from rolloutpool_common.process import child as child_module
from rolloutpool_common.process.backoff import Backoff
from rolloutpool_common.process.child import ChildSpec, Role
from rolloutpool_common.process.obituaries import Obituaries
from rolloutpool_common.process.oom import OomKills
from rolloutpool_common.process.supervisor import Supervisor


class Counter:
    """The kernel's counter of OOM kills."""

    value = 0

    def __call__(self) -> int:
        return self.value


@pytest.fixture
def counter() -> Counter:
    return Counter()


@pytest.fixture
def obituaries(redis_url: str, counter: Counter) -> Iterator[Obituaries]:
    made = Obituaries(redis_url, oom_kills=OomKills(counter))
    made.start()
    yield made
    made.stop()


def until(what: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not what():
        assert time.monotonic() < end
        time.sleep(0.01)


def reported(redis_url: str, count: int = 1) -> dict[str, str]:
    """What the hash of reports holds, once it has so many."""
    with Redis.from_url(redis_url, decode_responses=True) as redis:
        until(lambda: redis.hlen("rp:obituaries") >= count)
        return dict(redis.hgetall("rp:obituaries"))


def subscribers(redis_url: str, name: str) -> int:
    with Redis.from_url(redis_url) as redis:
        return int(redis.pubsub_numsub(f"rp:life:{name}")[0][1])


@pytest.mark.parametrize(
    ("returncode", "how", "text"),
    [
        (0, {"told_to_stop": True}, "stopped"),
        (-signal.SIGTERM, {}, "stopped"),
        (-signal.SIGKILL, {}, "killed"),
        (-signal.SIGSEGV, {}, "signal:11"),
        (70, {}, "exit:70"),
        (0, {}, "exit:0"),
    ],
)
def test_each_end_has_its_name(
    obituaries: Obituaries, redis_url: str, returncode: int, how: dict[str, bool], text: str
) -> None:
    worker_id, options = obituaries.name_worker()
    assert options == ["--worker-id", worker_id, "--supervisor", obituaries.supervisor_id]
    obituaries.report(worker_id, returncode, **how)
    assert reported(redis_url) == {worker_id: text}


def test_a_kill_for_memory_is_told_from_others(obituaries: Obituaries, redis_url: str, counter: Counter) -> None:
    counter.value += 1
    obituaries.report("by us", -signal.SIGKILL, killed_by_us=True)
    obituaries.report("large", -signal.SIGKILL)
    obituaries.report("other", -signal.SIGKILL)
    assert reported(redis_url, 3) == {"by us": "killed", "large": "oom", "other": "killed"}


def test_the_parent_is_seen_by_its_lifeline(obituaries: Obituaries, redis_url: str) -> None:
    assert subscribers(redis_url, f"sup:{obituaries.supervisor_id}") == 1
    obituaries.stop()
    until(lambda: subscribers(redis_url, f"sup:{obituaries.supervisor_id}") == 0)


def test_a_report_waits_for_redis_and_holds_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The child crashes while Redis is away. It is started again at once, and Redis hears of it when it is back."""
    monkeypatch.setattr(child_module, "RESTART", Backoff(first_s=0.01, longest_s=0.01, jitter=False))
    command = [sys.executable, "-S", "-c", "import signal; signal.pause()"]
    with durable_redis() as redis:
        supervisor, obituaries = Supervisor(print), Obituaries(redis.url)
        obituaries.start()
        try:
            spec = ChildSpec(name="w", role=Role.WORKER, command=command, obituaries=obituaries)
            child = supervisor.start(spec, ready=True)
            pid, worker_id = child.pid, child.worker_id or ""
            redis.kill()
            child.send(signal.SIGSEGV)
            until(lambda: child.pid not in (None, pid))
            assert child.worker_id != worker_id
            redis.start()
            assert reported(redis.url) == {worker_id: "signal:11"}
            supervisor.stop()
            assert reported(redis.url, 2)[child.worker_id or ""] == "stopped"
        finally:
            supervisor.kill()
            supervisor.wait()
            obituaries.stop()
