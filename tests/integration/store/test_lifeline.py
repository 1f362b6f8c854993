"""A lifeline shows that its process exists: while it does, and no longer."""

import asyncio
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import redis
import redis.asyncio
from tests.support.certificates import certificate
from tests.support.ports import free_port
from tests.support.redis_server import SERVER, start_redis
from tests.support.tls_proxy import tls_proxy
from tests.support.waiting import eventually

from rolloutpool_common.store.lifeline import Lifeline
from rolloutpool_common.store.workers import Beat, BeatAnswer

HOLDER = """
import sys, time
from rolloutpool_common.store.lifeline import Lifeline
from rolloutpool_common.store.workers import Beat, BeatAnswer
lifeline = Lifeline(sys.argv[1], "w")
lifeline.start()
print(lifeline.seen, flush=True)
{then}
time.sleep(60)
"""


@pytest.fixture
def watcher(redis_url: str) -> Iterator["redis.Redis"]:
    with redis.Redis.from_url(redis_url) as client:
        yield client


def subscribers(watcher: "redis.Redis", name: str = "w") -> int:
    """How many connections the channel of a process has."""
    return int(watcher.pubsub_numsub(f"rp:life:{name}")[0][1])


@pytest.fixture
async def lifeline(redis_url: str) -> AsyncIterator[Lifeline]:
    made = Lifeline(redis_url, "w")
    made.start()
    yield made
    made.stop()


@pytest.mark.parametrize("protocol", [2, 3])
def test_it_is_seen_from_start_to_stop(redis_url: str, watcher: "redis.Redis", protocol: int) -> None:
    lifeline = Lifeline(f"{redis_url}?protocol={protocol}", "sup:s")
    lifeline.start()
    assert lifeline.seen
    assert subscribers(watcher, "sup:s") == 1
    # Longer than a PING and its answer.
    time.sleep(1.5)
    assert subscribers(watcher, "sup:s") == 1
    began = time.monotonic()
    lifeline.stop()
    assert time.monotonic() - began < 1
    eventually(lambda: subscribers(watcher, "sup:s") == 0, seconds=1)


def test_a_unix_socket_with_a_password() -> None:
    with tempfile.TemporaryDirectory(prefix="rolloutpool-redis-") as directory:
        path = Path(directory) / "redis.sock"
        arguments = ("--port", "0", "--unixsocket", str(path), "--requirepass", "pass:word", "--save", "")
        server = subprocess.Popen([SERVER, *arguments], stdout=subprocess.DEVNULL)
        try:
            eventually(path.exists)
            lifeline = Lifeline(f"unix://:pass%3Aword@{path}?db=2", "w")
            lifeline.start()
            assert lifeline.seen
            lifeline.stop()
            locked_out = Lifeline(f"unix://{path}", "w")
            locked_out.start()
            assert not locked_out.seen
            locked_out.stop()
        finally:
            server.kill()
            server.wait()


@pytest.fixture(params=["redis", "proxy"])
def tls_url(request: pytest.FixtureRequest, redis_url: str, tmp_path: Path) -> Iterator[tuple[str, int]]:
    """The URL of a Redis over TLS, and a port without."""
    file, context = certificate("localhost", "127.0.0.1", tmp_path)
    port, plain = free_port(), free_port()
    url = f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={file}"
    if request.param == "proxy":
        # As in front of many managed servers: TLS ends at a process of its own.
        target = int(redis_url.rpartition(":")[2].partition("/")[0])
        with tls_proxy(port, target, context):
            yield url, target
        return
    server = shutil.which("redis-server")
    if server is None:
        pytest.skip("no redis-server on PATH; the bundled one is built without TLS")
    options = ("--tls-port", str(port), "--port", str(plain), "--tls-cert-file", str(file), "--tls-key-file", str(file))
    command = [server, *options, "--tls-auth-clients", "no", "--save", ""]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=tmp_path) as process:
        try:
            with redis.Redis(port=plain) as client:
                eventually(lambda: answers(client))
            yield url, plain
        finally:
            process.kill()


def answers(client: "redis.Redis") -> bool:
    try:
        return bool(client.ping())
    except redis.exceptions.ConnectionError:
        return False


def test_over_tls(tls_url: tuple[str, int]) -> None:
    url, plain = tls_url
    with redis.Redis(port=plain) as client, holder(url) as process:
        assert subscribers(client) == 1
        client.client_kill_filter(_type="pubsub")
        eventually(lambda: subscribers(client) == 1, seconds=2)
        process.kill()
        eventually(lambda: subscribers(client) == 0, seconds=1)


def test_a_killed_connection_comes_back(lifeline: Lifeline, watcher: "redis.Redis") -> None:
    for _ in range(3):
        watcher.client_kill_filter(_type="pubsub")
        eventually(lambda: subscribers(watcher) == 1, seconds=1.5)
    assert lifeline.seen


def test_it_comes_back_after_a_restart_of_redis() -> None:
    with tempfile.TemporaryDirectory(prefix="rolloutpool-redis-") as directory:
        server = start_redis(directory)
        lifeline = Lifeline(server.url, "w")
        lifeline.start()
        server.process.kill()
        server.process.wait()
        time.sleep(1)
        again = subprocess.Popen([SERVER, "--port", str(server.port), "--save", ""], stdout=subprocess.DEVNULL)
        try:
            with redis.Redis(port=server.port) as client:

                def back() -> bool:
                    try:
                        return subscribers(client) == 1
                    except redis.exceptions.ConnectionError:
                        return False

                eventually(back, seconds=5)
        finally:
            lifeline.stop()
            again.kill()
            again.wait()


def holder(redis_url: str, then: str = "") -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER.format(then=then), redis_url], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "True"
    return process


def test_it_ends_with_the_process_and_not_before(redis_url: str, watcher: "redis.Redis") -> None:
    with holder(redis_url) as process:
        process.send_signal(signal.SIGSTOP)
        time.sleep(3)
        assert subscribers(watcher) == 1
        process.kill()
        eventually(lambda: subscribers(watcher) == 0, seconds=1)


def test_a_forked_child_does_not_keep_it(redis_url: str, watcher: "redis.Redis") -> None:
    with holder(redis_url, r"import os; os.fork(); os.write(1, b'%d\n' % os.getpid())") as process:
        assert process.stdout is not None
        pids = {int(process.stdout.readline()) for _ in range(2)}
        (child,) = pids - {process.pid}
        assert subscribers(watcher) == 1
        process.kill()
        eventually(lambda: subscribers(watcher) == 0, seconds=1)
        os.kill(child, signal.SIGKILL)


def test_a_child_of_multiprocessing_leaves_it_to_its_parent(lifeline: Lifeline, watcher: "redis.Redis") -> None:
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(0.1,))
    child.start()
    child.join()
    assert subscribers(watcher) == 1


async def test_a_blocked_event_loop_does_not_matter(redis_url: str, watcher: "redis.Redis") -> None:
    lifeline = Lifeline(redis_url, "w")
    await asyncio.to_thread(lifeline.start)
    watcher.client_kill_filter(_type="pubsub")
    time.sleep(1)  # noqa: ASYNC251  the very thing
    assert subscribers(watcher) == 1
    lifeline.stop()


class Counted:
    """A heart that counts its answers."""

    def __init__(self) -> None:
        self.heard: list[BeatAnswer] = []

    def beat(self) -> tuple[object, ...]:
        return Beat(running=0, tokenizers={}).arguments("w")

    def hear(self, answer: list[object]) -> None:
        self.heard.append(BeatAnswer.parse(answer))


@pytest.mark.parametrize(("protocol", "connections"), [(3, 1), (2, 2)])
def test_beats_go_over_the_lifeline(redis_url: str, watcher: "redis.Redis", protocol: int, connections: int) -> None:
    before, heart = len(watcher.client_list()), Counted()
    lifeline = Lifeline(f"{redis_url}?protocol={protocol}", "w", heart)
    lifeline.start()
    eventually(lambda: len(heart.heard) >= 3)
    assert lifeline.seen
    assert len(watcher.client_list()) - before == connections
    assert watcher.hget("rp:worker:w", "turned_ms") == b"0"
    # Redis was told nothing but beats, so it asks for an announcement; and it tells who was declared dead.
    assert [answer.known for answer in heart.heard[-1:]] == [False]
    watcher.zadd("rp:condemned", {"w": 1})
    eventually(lambda: heart.heard[-1].condemned)
    lifeline.stop()


def test_beats_go_on_where_an_acl_forbids_the_channel(redis_url: str, watcher: "redis.Redis") -> None:
    watcher.acl_setuser("mute", True, passwords=["+pw"], keys=["*"], commands=["+@all"], reset_channels=True)
    try:
        heart = Counted()
        lifeline_url = redis_url.replace("redis://", "redis://mute:pw@")
        lifeline = Lifeline(lifeline_url, "w", heart)
        lifeline.start()
        eventually(lambda: len(heart.heard) >= 2)
        alone = Lifeline(lifeline_url, "w")
        alone.start()
        for muted in (lifeline, alone):
            assert not muted.seen
            muted.stop()
    finally:
        watcher.acl_deluser("mute")
