"""Programs as processes of the runner's machine."""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import pytest
from pydantic import SecretStr
from tests.support.killed_runner import started_runner
from tests.support.processes import runs
from tests.support.waiting import eventually

from rolloutpool_worker.capabilities.harness.presets import Preset
from rolloutpool_worker.capabilities.harness.runner_settings import RunnerSettings
from rolloutpool_worker.capabilities.harness.runtime import (
    LOOK_SECONDS,
    ProcessRuntime,
    TooManyProcesses,
    count_processes,
)

REDIS = SecretStr("redis://nowhere")


async def test_a_server_that_is_left_behind_holds_up_nobody(tmp_path: Path) -> None:
    """It has left the program's group, and has the program's output open."""
    runtime = ProcessRuntime(RunnerSettings(redis_url=REDIS, runner_process="unsafe", runner_places=tmp_path))
    script = "setsid -f sh -c 'echo $$ > pid; exec sleep 600'; until [ -s pid ]; do :; done; cat pid"
    end = await runtime.run(Preset(("bash", "-c", script)), {})
    pid = int(end.output)
    assert (end.code, runs(pid)) == (0, True)
    os.kill(pid, signal.SIGKILL)


async def test_of_a_program_that_prints_much_the_end_is_kept(tmp_path: Path) -> None:
    """It says last why it fails."""
    runtime = ProcessRuntime(RunnerSettings(redis_url=REDIS, runner_process="unsafe", runner_places=tmp_path))
    end = await runtime.run(Preset(("bash", "-c", "head -c 6000000 /dev/zero; echo why >&2; exit 3")), {})
    assert (end.code, end.output[-5:]) == (3, "\0why\n")


async def test_what_is_left_behind_in_its_group_is_ended(tmp_path: Path) -> None:
    runtime = ProcessRuntime(RunnerSettings(redis_url=REDIS, runner_process="unsafe", runner_places=tmp_path))
    end = await runtime.run(Preset(("bash", "-c", "sleep 600 & echo $!; exit 4")), {})
    assert (end.code, runs(int(end.output))) == (4, False)


async def test_a_program_ends_with_a_runner_that_is_killed_and_the_next_one_deletes_its_home(tmp_path: Path) -> None:
    runner, pid = await started_runner("ProcessRuntime", "unsafe", tmp_path)
    settings = RunnerSettings(redis_url=REDIS, runner_process="unsafe", runner_places=tmp_path / "places")
    foreign = tmp_path / "places" / "rolloutpool-home-foreign"
    foreign.symlink_to(tmp_path)
    assert await ProcessRuntime(settings).clear() == 0  # Its runner lives.
    runner.kill()
    await runner.wait()
    await asyncio.to_thread(eventually, lambda: not runs(pid))
    assert await ProcessRuntime(settings).clear() == 1
    assert list((tmp_path / "places").iterdir()) == [foreign]


async def test_a_way_to_the_door_whose_runner_was_killed_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    code = """
import asyncio
from rolloutpool_worker.capabilities.harness.passage import opened_passage

async def way():
    async with opened_passage("http://127.0.0.1:1") as passage:
        print(passage.socket, flush=True)
        await asyncio.sleep(600)

asyncio.run(way())
"""
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    runner = await asyncio.create_subprocess_exec(sys.executable, "-c", code, env=env, stdout=subprocess.PIPE)
    assert runner.stdout is not None
    way = Path((await runner.stdout.readline()).decode().strip())
    runtime = ProcessRuntime(RunnerSettings(redis_url=REDIS, runner_process="unsafe"))
    assert (await runtime.clear(), os.listdir(way.parent)) == (0, ["door"])
    runner.kill()
    await runner.wait()
    assert (await runtime.clear(), os.listdir(tmp_path)) == (1, [])


def test_whatever_a_program_leaves_in_its_home_is_deleted() -> None:
    """Directories that nobody may write (Go's modules) or read, and a tree of 1,200 levels, by a plain user."""
    program = (
        "mkdir -p go/module shut; touch go/module/file; chmod 555 go/module; chmod 0 shut; "
        "mkdir -p $(printf 'd/%.0s' {1..1200}); chmod 0 $HOME"
    )
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        code = f"""
import asyncio, os
from rolloutpool_worker.capabilities.harness.presets import Preset
from rolloutpool_worker.capabilities.harness.runner_settings import RunnerSettings
from rolloutpool_worker.capabilities.harness.runtime import ProcessRuntime

if os.getuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
settings = RunnerSettings(redis_url="redis://nowhere", runner_process="unsafe", runner_places="{folder}")
end = asyncio.run(ProcessRuntime(settings).run(Preset(("bash", "-c", {program!r})), {{}}))
assert (end.code, end.output) == (0, ""), end
"""
        subprocess.run([sys.executable, "-c", code], check=True)
        assert not list(Path(folder).iterdir())


async def test_a_program_with_too_many_processes_is_ended_with_all_of_them(tmp_path: Path) -> None:
    """Their father is gone after a moment, as those of a fork bomb are; there are just not so many."""
    settings = RunnerSettings(redis_url=REDIS, runner_process="unsafe", runner_places=tmp_path, runner_pids=60)
    seconds = f"600.{os.getpid()}"
    program = Preset(("bash", "-c", f"for _ in $(seq 100); do (sleep {seconds} &); done; sleep {seconds}"))
    with pytest.raises(TooManyProcesses, match=r"may have 60 \(ROLLOUTPOOL_RUNNER_PIDS\)"):
        await ProcessRuntime(settings).run(program, {})
    await asyncio.to_thread(eventually, lambda: not _with_argument(seconds))


@pytest.mark.skipif(sys.platform != "linux", reason="Linux limits what a process writes, not what it reserves")
async def test_a_program_may_reserve_more_memory_than_it_may_use(tmp_path: Path) -> None:
    """Node reserves 10 GB of addresses for WebAssembly with its first request, and uses a few kB of them."""
    settings = RunnerSettings(redis_url=REDIS, runner_process="unsafe", runner_places=tmp_path, runner_memory_mb=512)
    script = """
import mmap
mmap.mmap(-1, 16 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000, prot=0)
try:
    bytearray(1 << 30)
except MemoryError:
    print("limited")
"""
    end = await ProcessRuntime(settings).run(Preset((sys.executable, "-c", script)), {})
    assert (end.code, end.output.strip()) == (0, "limited")


def _with_argument(text: str) -> list[str]:
    """Which processes have this argument."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if text.encode() in entry.read_bytes():
                found.append(entry.parent.name)
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc")
def test_processes_are_read_once_for_all_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty programs beside 500 processes took three quarters of a processor."""
    read, real = [], os.listdir

    def listed(folder: str) -> list[str]:
        read.append(folder)
        return real(folder)

    # What was read by another test counts no more.
    time.sleep(LOOK_SECONDS)
    monkeypatch.setattr(os, "listdir", listed)
    for _ in range(20):
        assert count_processes(os.getpid()) >= 1
        assert count_processes(2**22 + 1) == 0
    # The time of another reading may come meanwhile.
    assert 1 <= len(read) <= 3


def test_a_home_with_directories_that_are_shut_is_deleted() -> None:
    """Go shuts those of the modules that it downloads. Root would not notice."""
    code = """
import asyncio, os, sys
from pathlib import Path
from tests.unit.worker.capabilities.harness.test_runtime import REDIS, Preset, ProcessRuntime, RunnerSettings

places = Path(sys.argv[1])
(places / "other").mkdir(mode=0o500)
settings = RunnerSettings(redis_url=REDIS, runner_process="unsafe", runner_places=places)
program = "mkdir -p a/b c; touch a/b/x c/x; chmod 0 a/b; chmod 500 c; ln -s ../../other link"
assert asyncio.run(ProcessRuntime(settings).run(Preset(("bash", "-ec", program)), {})).code == 0
assert os.listdir(places) == ["other"]
assert (places / "other").stat().st_mode & 0o777 == 0o500
"""
    is_root = os.getuid() == 0
    user, groups = (65534 if is_root else None), (list[int]() if is_root else None)
    with tempfile.TemporaryDirectory() as places:
        Path(places).chmod(0o777)
        command = [sys.executable, "-c", code, places]
        subprocess.run(command, check=True, user=user, group=user, extra_groups=groups)
