"""Programs as processes of the runner's machine."""

import os
import signal
from pathlib import Path

from pydantic import SecretStr
from tests.support.processes import runs

from rolloutpool_worker.capabilities.harness.presets import Preset
from rolloutpool_worker.capabilities.harness.runner_settings import RunnerSettings
from rolloutpool_worker.capabilities.harness.runtime import ProcessRuntime

REDIS = SecretStr("redis://nowhere")


async def test_a_server_that_is_left_behind_holds_up_nobody(tmp_path: Path) -> None:
    """It has left the program's group, and has the program's output open."""
    runtime = ProcessRuntime(RunnerSettings(redis_url=REDIS, runner_process="unsafe", runner_places=tmp_path))
    script = "setsid -f sh -c 'echo $$ > pid; exec sleep 600'; until [ -s pid ]; do :; done; cat pid"
    end = await runtime.run(Preset(("bash", "-c", script)), {})
    pid = int(end.output)
    assert (end.code, runs(pid)) == (0, True)
    os.kill(pid, signal.SIGKILL)


async def test_what_is_left_behind_in_its_group_is_ended(tmp_path: Path) -> None:
    runtime = ProcessRuntime(RunnerSettings(redis_url=REDIS, runner_process="unsafe", runner_places=tmp_path))
    end = await runtime.run(Preset(("bash", "-c", "sleep 600 & echo $!; exit 4")), {})
    assert (end.code, runs(int(end.output))) == (4, False)
