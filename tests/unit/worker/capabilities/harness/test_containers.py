"""Programs in containers, as far as it can be seen without Docker: a `docker` of ours notes how it is called."""

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from tests.support.fake_docker import calls, fake_docker
from tests.support.killed_runner import started_runner
from tests.support.processes import runs
from tests.support.waiting import until_true

from rolloutpool_worker.capabilities.harness.containers import DockerRuntime
from rolloutpool_worker.capabilities.harness.presets import Preset
from rolloutpool_worker.capabilities.harness.runner_settings import RunnerSettings
from rolloutpool_worker.capabilities.harness.runtime import ProcessRuntime, ProgramMissing

VALUES = {"prompt": "say 'hi'\nnow", "url": "http://door/s/u", "key": "rp-1-secret"}
REDIS = SecretStr("redis://nowhere")
Made = Callable[..., DockerRuntime]


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{fake_docker(folder)}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("ROLLOUTPOOL_REDIS_URL", "redis://secret@redis")
    monkeypatch.setenv("GH_TOKEN", "gh")
    return folder


@pytest.fixture
def made(docker: Path, tmp_path: Path) -> Made:
    def make(**settings: Any) -> DockerRuntime:
        places = tmp_path / "places"
        places.mkdir(exist_ok=True)
        return DockerRuntime(RunnerSettings(redis_url=REDIS, runner_process="docker", runner_places=places, **settings))

    return make


def places(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "places").iterdir())


async def test_a_program_gets_its_home_its_variables_and_its_limits(made: Made, docker: Path, tmp_path: Path) -> None:
    runtime = made(runner_image="agents:1", runner_memory_mb=512, runner_network="agents", runner_pass=("GH_TOKEN",))
    script = 'printf \'%s|\' "$KEY" "$GH_TOKEN" "$1" "$ROLLOUTPOOL_REDIS_URL"; cat ../a/b; pwd; echo $HOME'
    preset = Preset(
        ("sh", "-c", script, "sh", "{prompt}"), env={"KEY": "{key}", "AT": "{home}/x"}, files={"a/b": "{url}\n"}
    )
    end = await runtime.run(preset, VALUES)
    (call,) = calls(docker)
    place = end.output.splitlines()[-1]
    assert end.output == f"rp-1-secret|gh|say 'hi'\nnow||http://door/s/u\n{place}/work\n{place}\n"
    assert end.code == 0
    arguments = call["arguments"]
    assert isinstance(arguments, list)
    options = arguments[: arguments.index("agents:1")]
    assert options[:4] == ["run", "--rm", "--init", "--name"]
    text = " ".join(options)
    assert f"--memory 512m --pids-limit 1024 --ulimit fsize={1024 * 2**20} --ulimit core=0" in text
    assert "--cap-drop ALL --security-opt no-new-privileges --network agents" in text
    assert f"--user {os.getuid()}:{os.getgid()} -w /home/agent/work" in text
    assert f"-v {place}:/home/agent" in text
    # The key is in a file of the runner alone, and in no list of processes; docker itself gets no secret of the runner.
    assert VALUES["key"] not in " ".join(arguments)
    lines = "LANG=C.UTF-8\nHOME=/home/agent\nTMPDIR=/home/agent/tmp\nGH_TOKEN=gh\nKEY=rp-1-secret\nAT=/home/agent/x\n"
    assert (call["variables"], call["mode"]) == (lines, 0o600)
    environment = call["environment"]
    assert isinstance(environment, dict)
    assert {"ROLLOUTPOOL_REDIS_URL", "GH_TOKEN"}.isdisjoint(environment)
    assert places(tmp_path) == []


async def test_what_a_rollout_names_goes_before_the_runner_s_image(made: Made, docker: Path) -> None:
    end = await made(runner_image="agents:1").run(Preset(("sh", "-c", "exit 3"), image="own:2"), VALUES)
    (call,) = calls(docker)
    assert end.code == 3
    assert call["arguments"][-4:] == ["own:2", "sh", "-c", "exit 3"]  # type: ignore[index]


async def test_one_that_is_given_up_is_removed_by_name(made: Made, docker: Path, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    preset = Preset(("sh", "-c", f"echo $$ > {pid}; exec sleep 600"))
    running = asyncio.create_task(made(runner_image="agents:1").run(preset, VALUES))
    await until_true(lambda: pid.exists() and pid.read_text().endswith("\n"))
    assert len(places(tmp_path)) == 2
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await until_true(lambda: not runs(int(pid.read_text())))
    run, removed = (call["arguments"] for call in calls(docker))
    assert removed == ["rm", "--force", run[run.index("--name") + 1]]  # type: ignore[attr-defined, index]
    assert places(tmp_path) == []


async def test_the_container_of_a_runner_that_was_killed_is_removed_by_the_next_one(
    made: Made, docker: Path, tmp_path: Path
) -> None:
    runner, pid = await started_runner("DockerRuntime", "docker", tmp_path)
    runner.kill()
    await runner.wait()
    assert (runs(pid), len(places(tmp_path))) == (True, 2)
    assert await made().clear() == 1
    await until_true(lambda: not runs(pid))
    assert places(tmp_path) == []


async def test_output_is_bounded(made: Made) -> None:
    script = "print('x' * 6_000_000); print('end')"
    end = await made(runner_image="agents:1").run(Preset((sys.executable, "-c", script)), VALUES)
    assert (end.code, len(end.output)) == (0, 2000)


@pytest.mark.parametrize(
    ("preset", "settings", "words"),
    [
        (Preset(("sh",)), {}, "has no image"),
        (Preset(("sh",), env={"A": "1\nB"}), {"runner_image": "a"}, "'A' holds a line break"),
    ],
    ids=["no-image", "line-break"],
)
async def test_what_cannot_be_started_says_why(
    made: Made, docker: Path, tmp_path: Path, preset: Preset, settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(ProgramMissing, match=words):
        await made(**settings).run(preset, VALUES)
    assert calls(docker) == []
    assert places(tmp_path) == []


def test_without_docker_there_is_no_runner(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ProgramMissing, match="there is no docker"):
        DockerRuntime(RunnerSettings(redis_url=REDIS, runner_process="docker"))


async def test_a_runner_without_containers_does_not_run_what_wants_one() -> None:
    with pytest.raises(ProgramMissing, match="wants the image of a container"):
        await ProcessRuntime(RunnerSettings(redis_url=REDIS, runner_process="unsafe")).run(
            Preset(("true",), image="own:2"), VALUES
        )
