"""What a runner does about programs that cannot be started, and about those whose runner has died."""

import asyncio
import errno
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.support.batches import claim, submit
from tests.support.waiting import until, until_true

from rolloutpool_common.capabilities.harness.sessions import Sessions
from rolloutpool_common.capabilities.harness.wire import SessionEnd
from rolloutpool_common.process.settings import SettingsInvalid
from rolloutpool_common.store import Claim, Store, StoreError
from rolloutpool_worker.capabilities.harness.presets import Preset
from rolloutpool_worker.capabilities.harness.runner import Runner
from rolloutpool_worker.capabilities.harness.runner_settings import RunnerSettings
from rolloutpool_worker.capabilities.harness.runtime import ProcessRuntime, ProgramEnd, Runtime


class Started:
    """A runtime whose programs end at once."""

    def __init__(self) -> None:
        self.programs = 0

    async def run(self, preset: Preset, values: Mapping[str, str]) -> ProgramEnd:
        """Counts it."""
        self.programs += 1
        return ProgramEnd(0, "")

    async def clear(self) -> int:
        """Finds nothing."""
        return 0


async def end_of(
    store: Store, claimed: Claim, settings: RunnerSettings, runtime: Runtime, *, dead: bool = False
) -> SessionEnd:
    """How a session ends that a runner serves; `dead`: another one had its place, and is silent."""
    sessions = Sessions(store)
    await sessions.want_place(claimed, reuse=True)
    if dead:
        assert await sessions.take_place("dead", 0.01) is not None
        await asyncio.sleep(0.05)
    running = asyncio.create_task(Runner(settings, store, runtime).run())

    async def ended() -> SessionEnd | None:
        return (await sessions.state(claimed.uid)).end

    try:
        return await until(ended, 5)
    finally:
        running.cancel()
        await asyncio.wait([running])


@pytest.mark.parametrize(("on_death", "programs"), [("replay", 1), ("restart", 1), ("fail", 0)])
async def test_after_a_runner_that_died_the_program_is_started_again_unless_it_is_to_fail(
    store: Store, on_death: str, programs: int
) -> None:
    (uid,) = await submit(store, shared={"harness": {"command": ["x"], "on_death": on_death}}, asks={"harness": True})
    runtime, settings = Started(), RunnerSettings.model_validate({"redis_url": "redis://x"})
    end = await end_of(store, await claim(store, uid), settings, runtime, dead=True)
    assert (runtime.programs, end.failed is None) == (programs, programs == 1)


class Full(Started):
    """A runtime whose disk is full."""

    async def run(self, preset: Preset, values: Mapping[str, str]) -> ProgramEnd:
        """Counts it, and starts nothing."""
        await super().run(preset, values)
        raise OSError(errno.ENOSPC, "No space left on device")


async def test_a_runner_without_room_leaves_its_place_to_others(store: Store) -> None:
    """Also where no program may be started again: none was."""
    (uid,) = await submit(store, shared={"harness": {"command": ["x"], "on_death": "fail"}}, asks={"harness": True})
    settings, full = RunnerSettings.model_validate({"redis_url": "redis://x"}), Full()
    await Sessions(store).want_place(claimed := await claim(store, uid), reuse=True)
    without = asyncio.create_task(Runner(settings, store, full).run())
    try:
        await until_true(lambda: full.programs > 0, 5)
        end = await end_of(store, claimed, settings, Started())
    finally:
        without.cancel()
        await asyncio.wait([without])
    assert (end.failed, full.programs) == (None, 1)


@pytest.mark.parametrize(
    "choice",
    [
        {"command": ["/bin/echo", "{prompt}"]},
        {"command": ["/bin/true"], "files": {"a\0": "x"}},
        {"command": ["/bin/true"], "files": {"work": "x"}},
        {"command": ["/bin/true", "x" * 3_000_000]},
    ],
    ids=["prompt", "file", "folder", "long"],
)
async def test_a_program_that_no_process_can_be_is_given_up_at_once(store: Store, choice: dict[str, Any]) -> None:
    settings = RunnerSettings.model_validate({"redis_url": "redis://x", "runner_process": "unsafe"})
    messages = [{"role": "user", "content": "a\0b"}]
    (uid,) = await submit(store, shared={"harness": choice, "messages": messages}, asks={"harness": True})
    end = await end_of(store, await claim(store, uid), settings, ProcessRuntime(settings))
    assert end.failed is not None
    assert "could not be started" in end.failed


async def test_a_program_that_has_ended_is_not_started_again_because_its_runner_stops(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis is away when the program ends, and back when the runner has its last word."""
    (uid,) = await submit(store, shared={"harness": {"command": ["x"]}}, asks={"harness": True})
    sessions, runtime = Sessions(store), Started()
    await sessions.want_place(await claim(store, uid), reuse=True)
    runner = Runner(RunnerSettings.model_validate({"redis_url": "redis://x"}), store, runtime)
    refused = asyncio.Event()

    async def away(*_: object, **__: object) -> None:
        refused.set()
        raise StoreError("away")

    with monkeypatch.context() as changed:
        changed.setattr(Sessions, "leave_place", away)
        running = asyncio.create_task(runner.run())
        await refused.wait()
    running.cancel()
    await asyncio.wait([running])
    assert (await sessions.state(uid)).end == SessionEnd()
    assert await sessions.take_place("next", 15) is None


def test_a_runner_does_not_start_without_a_directory_for_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("ROLLOUTPOOL_REDIS_URL", "redis://x")
    for wrong in ("file", "missing"):
        monkeypatch.setenv("ROLLOUTPOOL_RUNNER_PLACES", str(tmp_path / wrong))
        with pytest.raises(SettingsInvalid, match="RUNNER_PLACES: no directory"):
            RunnerSettings.from_environment()
    monkeypatch.setenv("ROLLOUTPOOL_RUNNER_PLACES", os.path.relpath(tmp_path))
    assert RunnerSettings.from_environment().runner_places == Path(os.path.relpath(tmp_path)).absolute()
