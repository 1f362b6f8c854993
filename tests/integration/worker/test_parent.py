"""The parent of workers, as `rolloutpool worker` and the image start it: they end and are started again."""

import os
import signal
from collections.abc import AsyncIterator, Collection
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from tests.support.durable_redis import durable_redis
from tests.support.processes import runs
from tests.support.waiting import until, until_true
from tests.support.worker_process import LONGEST_WAIT, Worker, started_worker

from rolloutpool_common.process.obituaries import Obituaries
from rolloutpool_common.protocol.workers import Worker as Announced
from rolloutpool_common.store import Store

TWO = ("--processes", "2")


@pytest.fixture
async def store(redis_url: str) -> AsyncIterator[Store]:
    opened = Store.open(redis_url)
    yield opened
    await opened.close()


def title(pid: int) -> str:
    """As `ps` shows the process."""
    return Path(f"/proc/{pid}/cmdline").read_text()


def memory(pid: int) -> tuple[int, int]:
    """What a process has for itself, and all that it has in memory, in kB."""
    words = Path(f"/proc/{pid}/smaps_rollup").read_text().split()
    own, resident = (int(words[words.index(name) + 1]) for name in ("Private_Dirty:", "Rss:"))
    return own, resident


def children(pid: int) -> set[int]:
    """The children of all threads of a process."""
    files = Path(f"/proc/{pid}/task").glob("*/children")
    return {int(child) for file in files for child in file.read_text().split()}


async def workers(store: Store, parent: Worker, *, without: Collection[str] = ()) -> list[Announced]:
    """The two workers, once both have announced themselves; `without` those of these ids."""

    async def look() -> list[Announced] | None:
        assert parent.process.poll() is None, parent.log()
        found = [worker for worker in await store.workers.known() if worker.worker_id not in without]
        return found if len(found) == 2 else None

    return await until(look, LONGEST_WAIT)


async def reports(redis_url: str, count: int) -> dict[str, str]:
    """The parent's reports, once there are so many. No reconciler runs here, so they stay."""
    async with Redis.from_url(redis_url, decode_responses=True) as redis:

        async def look() -> dict[str, str] | None:
            found = {str(worker): str(end) for worker, end in (await redis.hgetall("rp:obituaries")).items()}
            return found if len(found) >= count else None

        return await until(look, LONGEST_WAIT)


async def test_a_worker_that_dies_is_reported_and_started_again(redis_url: str, store: Store) -> None:
    with started_worker(redis_url, arguments=TWO) as parent:
        first, second = await workers(store, parent)
        os.kill(first.pid, signal.SIGSEGV)
        os.kill(second.pid, signal.SIGKILL)
        expected = {first.worker_id: "signal:11", second.worker_id: "killed"}
        assert await reports(redis_url, 2) == expected
        again = await workers(store, parent, without={first.worker_id, second.worker_id})
        assert {worker.host for worker in again} == {first.host}
        parent.terminate()
        assert await parent.ended() == 0
        # A drain is no crash: the workers left, and their parent says that they were told to.
        stopped = {worker.worker_id: "stopped" for worker in again}
        assert await reports(redis_url, 4) == {**expected, **stopped}


@pytest.mark.slow
async def test_workers_share_their_imports_and_are_known_by_name(redis_url: str, store: Store) -> None:
    with started_worker(redis_url, arguments=TWO) as parent:
        found = await workers(store, parent)
        for worker in found:
            # An operator finds a worker's process by the id that the pool shows.
            assert worker.worker_id in title(worker.pid)
            own, resident = memory(worker.pid)
            assert own < 0.5 * resident
        # Without the server its workers go on, and are replaced as they end.
        (server,) = children(parent.process.pid) - {worker.pid for worker in found}
        os.kill(server, signal.SIGKILL)
        first, second = found
        os.kill(first.pid, signal.SIGKILL)
        again = await workers(store, parent, without={first.worker_id})
        assert second.worker_id in {worker.worker_id for worker in again}


@pytest.mark.slow
async def test_the_exit_code_of_a_watchdog_is_reported(redis_url: str, store: Store, tmp_path: Path) -> None:
    """A plug-in stands for the watchdog, which waits for half a minute before it ends a process with this code."""
    (tmp_path / "wedged.py").write_text("import os, signal; signal.signal(signal.SIGUSR2, lambda *_: os._exit(70))")
    with started_worker(redis_url, [tmp_path], arguments=TWO, ROLLOUTPOOL_PLUGINS="wedged") as parent:
        first, _ = await workers(store, parent)
        os.kill(first.pid, signal.SIGUSR2)
        assert await reports(redis_url, 1) == {first.worker_id: "exit:70"}


async def test_if_the_parent_is_killed_its_workers_end_and_all_lifelines_are_gone(redis_url: str, store: Store) -> None:
    with started_worker(redis_url, arguments=TWO) as parent:
        found = await workers(store, parent)
        async with Redis.from_url(redis_url) as redis:
            channels = await redis.pubsub_channels("rp:life:sup:*")
            assert len(channels) == 1
            parent.kill()

            async def gone() -> bool:
                return not await redis.pubsub_channels("rp:life:*")

            await until(gone, LONGEST_WAIT)
            assert await redis.hlen("rp:obituaries") == 0
            await until_true(lambda: not any(runs(worker.pid) for worker in found), LONGEST_WAIT)


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("ROLLOUTPOOL_WORKER_SLOTS", "none", "ROLLOUTPOOL_WORKER_SLOTS"),
        # Known only to the workers: the parent imports no plug-in.
        ("ROLLOUTPOOL_PLUGINS", "no.such.module", "no.such.module"),
    ],
)
async def test_workers_that_cannot_start_end_their_parent(
    redis_url: str, variable: str, value: str, message: str
) -> None:
    with started_worker(redis_url, arguments=TWO, **dict[str, Any]({variable: value})) as parent:
        assert await parent.ended() == 2
        assert message in parent.log()
        assert "starting it again" not in parent.log()


@pytest.mark.slow
async def test_a_report_arrives_when_redis_is_back() -> None:
    with durable_redis() as redis, started_worker(redis.url, arguments=TWO) as parent:
        store = Store.open(redis.url)
        try:
            first, second = await workers(store, parent)
            redis.kill()
            os.kill(first.pid, signal.SIGABRT)
            redis.start()
            assert await reports(redis.url, 1) == {first.worker_id: "signal:6"}
            others = await workers(store, parent, without={first.worker_id})
            assert second.worker_id in {worker.worker_id for worker in others}
        finally:
            await store.close()


def test_a_stop_that_interrupts_the_start_of_reports_is_no_error() -> None:
    """A SIGTERM two seconds after the start of a parent ended it with a traceback."""
    Obituaries("redis://127.0.0.1:9/0").stop()
