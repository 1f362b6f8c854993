"""A head may take its time, and a crowd of them from one client less."""

import asyncio
import resource
from functools import partial

import pytest

from rolloutpool_api import waiting_heads
from rolloutpool_api.waiting_heads import WaitingHeads


async def closed(heads: WaitingHeads, clients: list[str], seconds: float) -> list[str]:
    """The clients of those that were closed so many seconds after all of them had begun."""
    late: list[str] = []
    waits = [heads.begin(client, partial(late.append, client)) for client in clients]
    await asyncio.sleep(seconds)
    for wait in waits:
        wait.end()
        wait.end()
    return late


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_heads, "CROWD_SECONDS", 0.05)
    monkeypatch.setattr(waiting_heads, "CROWD", 3)


async def test_a_crowd_of_one_client_is_thinned_out_and_others_are_not_touched() -> None:
    heads = WaitingHeads(60)
    assert await closed(heads, ["a"] * 10 + ["b"] * 3, 0.5) == ["a"] * 7
    assert not heads.waiting


async def test_each_is_closed_after_its_time() -> None:
    heads = WaitingHeads(0.2)
    assert sorted(await closed(heads, ["a", "b"], 1)) == ["a", "b"]
    assert not heads.waiting


async def test_one_that_ends_in_time_is_not_closed() -> None:
    heads = WaitingHeads(60)
    assert await closed(heads, ["a"] * 10, 0) == []
    assert not heads.waiting


async def test_a_time_below_that_of_a_crowd_holds() -> None:
    heads = WaitingHeads(0.01)
    assert await closed(heads, ["a"], 0.5) == ["a"]


@pytest.mark.parametrize(
    ("files", "crowd"), [(256, 64), (1024, 256), (1_048_576, 2048), (resource.RLIM_INFINITY, 2048)]
)
def test_a_crowd_takes_no_more_than_a_quarter_of_the_files(
    monkeypatch: pytest.MonkeyPatch, files: int, crowd: int
) -> None:
    monkeypatch.setattr(waiting_heads, "CROWD", 2048)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (files, files))
    assert WaitingHeads(60).crowd == crowd
