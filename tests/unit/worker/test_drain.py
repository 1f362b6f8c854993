"""Rollouts stop at borders once a drain has begun, and a pause ends with it."""

import asyncio

import pytest

from rolloutpool_worker.drain import Drain, Drained, RolloutStop, SuspectCleared


async def test_a_border_is_open_until_the_drain_begins() -> None:
    drain = Drain()
    drain.check()
    await drain.pause(0.0)
    drain.begin()
    assert drain.begun
    with pytest.raises(Drained):
        drain.check()
    with pytest.raises(Drained):
        await drain.pause(60.0)


async def test_a_pause_ends_when_the_drain_begins() -> None:
    drain = Drain()
    pause = asyncio.create_task(drain.pause(60.0))
    await asyncio.sleep(0)
    drain.begin()
    with pytest.raises(Drained):
        async with asyncio.timeout(10):
            await pause


def test_a_cleared_suspect_stops_at_its_border_and_no_other_rollout_does() -> None:
    drain = Drain()
    suspect, other = RolloutStop(drain), RolloutStop(drain)
    suspect.check()
    suspect.clear_suspect()
    with pytest.raises(SuspectCleared):
        suspect.check()
    other.check()
    assert not drain.begun


def test_a_drain_stops_every_rollout_and_is_named_even_where_the_rollout_was_stopped_before() -> None:
    drain = Drain()
    stopped, other = RolloutStop(drain), RolloutStop(drain)
    stopped.clear_suspect()
    drain.begin()
    for rollout in (stopped, other):
        with pytest.raises(Drained):
            rollout.check()


async def test_a_rollout_that_stays_passes_all_borders() -> None:
    drain = Drain()
    staying, other = RolloutStop(drain), RolloutStop(drain)
    await staying.pause(0.0)
    staying.stays = True
    staying.clear_suspect()
    drain.begin()
    staying.check()
    await staying.pause(0.0)
    with pytest.raises(Drained):
        await other.pause(60.0)
