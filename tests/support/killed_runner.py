"""A runner in a process of its own that a test may kill, with a program that runs until somebody ends it."""

import asyncio
import sys
from asyncio.subprocess import Process
from pathlib import Path

from tests.support.waiting import eventually


async def started_runner(runtime: str, process: str, folder: Path) -> tuple[Process, int]:
    """Runs one program by a runtime, in a place below `places` here; returns the runner, and the program's id."""
    (folder / "places").mkdir(exist_ok=True)
    code = f"""
import asyncio
from rolloutpool_worker.capabilities.harness.containers import DockerRuntime
from rolloutpool_worker.capabilities.harness.presets import Preset
from rolloutpool_worker.capabilities.harness.runner_settings import RunnerSettings
from rolloutpool_worker.capabilities.harness.runtime import ProcessRuntime

settings = RunnerSettings(
    redis_url="redis://nowhere", runner_process="{process}", runner_places="{folder}/places", runner_image="agents:1"
)
program = Preset(("bash", "-c", "echo $$ > {folder}/new; mv {folder}/new {folder}/pid; exec sleep 600"))
asyncio.run({runtime}(settings).run(program, {{}}))
"""
    runner = await asyncio.create_subprocess_exec(sys.executable, "-c", code)
    await asyncio.to_thread(eventually, (folder / "pid").exists, seconds=30)
    pid = int((folder / "pid").read_text())
    return runner, pid
