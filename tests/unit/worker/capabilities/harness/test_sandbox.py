"""What a hostile program can reach in a place of bubblewrap, and what is left of it (Debian: bubblewrap)."""

import asyncio
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.support.processes import runs
from tests.support.waiting import until

from rolloutpool_worker.capabilities.harness.presets import Preset
from rolloutpool_worker.capabilities.harness.runner_settings import RunnerSettings
from rolloutpool_worker.capabilities.harness.runtime import ProcessRuntime, ProgramEnd


def can_isolate() -> bool:
    bwrap = shutil.which("bwrap")
    command = [bwrap or "", "--ro-bind", "/", "/", "--unshare-pid", "--proc", "/proc", "--", "/bin/true"]
    return bwrap is not None and subprocess.run(command, check=False, capture_output=True).returncode == 0


pytestmark = pytest.mark.skipif(not can_isolate(), reason="needs bubblewrap, and namespaces for it")


async def ran(script: str, hide: Path | None = None, **env: str) -> ProgramEnd:
    settings = RunnerSettings(
        redis_url="redis://127.0.0.1:1",
        runner_process="bubblewrap",
        runner_hide=() if hide is None else (str(hide),),
        runner_file_mb=1,
    )
    preset = Preset(("bash", "-c", script), env)
    return await ProcessRuntime(settings).run(preset, {"prompt": "p", "url": "u", "key": "k"})


async def test_it_sees_its_own_processes_and_a_read_only_machine(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s")
    end = await ran(
        f"ls /proc | grep -c '^[0-9]'; cat {tmp_path}/secret; touch /etc/x; touch /tmp/mine && echo own", tmp_path
    )
    processes, *others = end.output.splitlines()
    assert int(processes) < 8
    assert "own" in others
    assert any("No such file" in line for line in others)
    assert any("Read-only file system" in line for line in others)
    assert "mine" not in os.listdir("/tmp")


async def test_it_gets_no_variable_of_the_runner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLOUTPOOL_REDIS_URL", "redis://secret")
    end = await ran("env", MINE="1")
    names = {line.partition("=")[0] for line in end.output.splitlines()}
    assert names - {"PWD", "SHLVL", "_", "OLDPWD"} == {"PATH", "LANG", "HOME", "TMPDIR", "MINE"}


async def test_a_large_file_is_cut_and_its_home_is_deleted() -> None:
    end = await ran("pwd; head -c 5000000 /dev/zero > big; stat -c %s big")
    home, *_, size = end.output.splitlines()
    assert int(size) <= 2**20
    assert Path(home).parent.name not in os.listdir("/tmp")


async def test_what_it_leaves_behind_ends_with_it() -> None:
    """Also what has a session of its own, and when it is cancelled."""
    marker = f"sleep {100_000 + os.getpid()}"
    await ran(f"setsid {marker} & setsid nohup {marker} & echo left")
    assert found(marker) == []
    running = asyncio.ensure_future(ran(f"setsid {marker} & wait"))

    async def started() -> bool:
        return bool(found(marker))

    await until(started, 10)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    async def ended() -> bool:
        return found(marker) == []

    await until(ended, 10)


def found(command: str) -> list[int]:
    """Returns the processes of this machine with this command."""
    pids = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().decode().replace("\0", " ").strip()
            except OSError:
                continue
            if words == command and runs(int(entry.name)):
                pids.append(int(entry.name))
    return pids
