"""Tokenizers are loaded before the claim, and before a worker takes work; nothing that goes wrong ends the worker."""

import asyncio
import logging
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.batches import submit as submit_batch
from tests.support.batches import view_of
from tests.support.inside_worker import InsideWorker, inside_worker
from tests.support.scripted_trainer import scripted_trainer
from tests.support.trainer_script import say
from tests.support.waiting import until_true

from rolloutpool_common.outcomes import RolloutStatus
from rolloutpool_common.rendering import TINY, ChatTokenizer, TokenizerCache, TokenizerLoadError, cache, load_tokenizer
from rolloutpool_common.store import Store
from rolloutpool_worker.rollout.tokenizer_loads import PLACES_OF_ONE, TokenizerLoads

SLOW, BROKEN, DEFECT = "tests/slow", "tests/broken", "tests/defect"
UNKNOWN = "tests/unknown-"


class Loader:
    """Loads as told by the name."""

    def __init__(self, tokenizer: ChatTokenizer) -> None:
        self._tokenizer = tokenizer
        self.go_on = threading.Event()
        self.loaded: list[str] = []

    def __call__(
        self, name: str, revision: str | None = None, *, trust_remote_code: bool = False, **_: Any
    ) -> ChatTokenizer:
        self.loaded.append(name)
        if name == SLOW or name.startswith(UNKNOWN):
            self.go_on.wait(30)
        if name == BROKEN:
            raise TokenizerLoadError(name, "it is broken.")
        if name == DEFECT:
            raise MemoryError
        return self._tokenizer


@pytest.fixture
def loader(monkeypatch: pytest.MonkeyPatch) -> Iterator[Loader]:
    made = Loader(load_tokenizer(TINY))
    monkeypatch.setattr(cache, "load_tokenizer", made)
    yield made
    made.go_on.set()


async def status(store: Store, uid: str) -> RolloutStatus:
    view = await view_of(store, uid)
    return view.status


async def submit(worker: InsideWorker, url: str, tokenizer: str) -> str:
    (uid,) = await worker.submit(server_url=url, tokenizer_name=tokenizer)
    return uid


async def test_a_rollout_is_claimed_only_when_its_tokenizer_is_loaded(
    fake_redis: str, store: Store, loader: Loader, tokenizer: ChatTokenizer
) -> None:
    async with (
        inside_worker(fake_redis, TokenizerCache(5)) as worker,
        scripted_trainer(tokenizer, say(), say(), say()) as trainer,
    ):
        waiting = [await submit(worker, trainer.url, SLOW) for _ in range(20)]
        tickets = [asyncio.create_task(worker.take(uid)) for uid in waiting]
        await until_true(lambda: SLOW in loader.loaded)
        # Shown in the list of workers by the next beat.
        assert worker.services.tokenizers.loading() == (SLOW,)
        assert {await status(store, uid) for uid in waiting} == {RolloutStatus.QUEUED}
        # Others go on meanwhile, more of them than there are threads.
        assert await worker.take(await submit(worker, trainer.url, TINY)) == "completed"
        loader.go_on.set()
        assert await tickets[0] in ("completed", "failed")
        await asyncio.gather(*tickets)
    assert loader.loaded.count(SLOW) == 1


async def test_a_process_that_shuts_down_does_not_wait_for_a_load(
    fake_redis: str, store: Store, loader: Loader, tokenizer: ChatTokenizer
) -> None:
    async with inside_worker(fake_redis, TokenizerCache(5)) as worker:
        uid = await submit(worker, "http://127.0.0.1:9", SLOW)
        ticket = asyncio.create_task(worker.take(uid))
        await until_true(lambda: SLOW in loader.loaded)
        worker.services.drain.begin()
        assert await ticket == "draining"
        assert await status(store, uid) is RolloutStatus.QUEUED
        loader.go_on.set()


@pytest.mark.parametrize("name", [BROKEN, DEFECT])
async def test_a_tokenizer_that_cannot_be_loaded_fails_its_rollout_after_the_claim(
    fake_redis: str, loader: Loader, name: str
) -> None:
    async with inside_worker(fake_redis, TokenizerCache(5), infra_retries=0) as worker:
        assert await worker.take(await submit(worker, "http://127.0.0.1:9", name)) == "failed"


async def test_a_start_loads_what_live_batches_need_and_skips_the_rest(
    fake_redis: str, loader: Loader, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "rolloutpool_worker")
    tokenizers = TokenizerCache(5, allow=["tests/*"])
    async with inside_worker(fake_redis, tokenizers) as worker:
        for name in (BROKEN, "forbidden", DEFECT, "tests/good"):
            await submit(worker, "http://127.0.0.1:9", name)
        await worker.services.tokenizer_loads.warm_up(5, 20)
    assert tokenizers.is_loaded("tests/good")
    for name in (BROKEN, "forbidden", DEFECT):
        assert sum(f"tokenizer {name} is skipped" in line for line in caplog.messages) == 1


async def test_a_start_has_a_time_limit(
    fake_redis: str, loader: Loader, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    async with inside_worker(fake_redis, TokenizerCache(5)) as worker:
        await submit(worker, "http://127.0.0.1:9", SLOW)
        loads = TokenizerLoads(worker.services.tokenizers, store, worker.services.drain)
        begun = time.monotonic()
        await loads.warm_up(5, 0.2)
        assert time.monotonic() - begun < 10
        assert "took longer than" in caplog.text
        await loads.warm_up(0, 20)
        loader.go_on.set()


async def test_names_that_take_long_do_not_keep_a_neighbours_tokenizer_waiting(
    fake_redis: str, store: Store, loader: Loader, tokenizer: ChatTokenizer
) -> None:
    """32 of one owner took all threads for minutes, and the neighbour's had not begun."""

    async def of(owner: str, name: str, url: str) -> str:
        (uid,) = await submit_batch(store, owner=owner, shared={"tokenizer_name": name, "server_url": url})
        return uid

    async with (
        inside_worker(fake_redis, TokenizerCache(50)) as worker,
        scripted_trainer(tokenizer, say(), say(), say()) as trainer,
    ):
        many = [await of("greedy", f"{UNKNOWN}{n}", trainer.url) for n in range(32)]
        # Last in its line, and the neighbour's.
        many.append(await of("greedy", "tests/good", trainer.url))
        tickets = [asyncio.create_task(worker.take(uid)) for uid in many]
        await until_true(lambda: len(worker.services.tokenizer_loads.waiting()) == 31)
        async with asyncio.timeout(20):
            assert await worker.take(await of("neighbour", "tests/good", trainer.url)) == "completed"
        assert len([name for name in loader.loaded if name.startswith(UNKNOWN)]) == PLACES_OF_ONE
        loader.go_on.set()
        await asyncio.gather(*tickets)
        assert worker.services.tokenizer_loads.waiting() == []
