"""The images without an engine: their build stages run here as they stand, and their commands run from the result.

Each build stage's COPY and RUN lines are carried out in a folder of its own, with VENV inside it. What is not covered
is what an engine adds: the base image, the user, the network.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from tests.support.dockerfile import stages
from tests.support.secrets import secrets_file
from tests.support.waiting import eventually

from rolloutpool_common.rendering import load_tokenizer
from rolloutpool_common.security.api_keys import KeyScope, make_key
from rolloutpool_trainer import RolloutClient, callback_app
from rolloutpool_trainer.endpoint.server import serve_callback
from rolloutpool_trainer.testing import ScriptedPolicy

ROOT = Path(__file__).parents[2]
TINY = "rolloutpool/tiny"
pytestmark = pytest.mark.timeout(600)


@dataclass(frozen=True)
class Image:
    """What a build stage left behind, and how the image starts."""

    venv: Path
    command: list[str]
    env: dict[str, str]

    @contextmanager
    def running(self, log: Path, **settings: str) -> Iterator[subprocess.Popen[bytes]]:
        """Its process, ended by SIGTERM as an engine would."""
        with log.open("wb") as output:
            process = subprocess.Popen(
                self.command, env={**self.env, **settings}, cwd=log.parent, stdout=output, stderr=subprocess.STDOUT
            )
            try:
                yield process
                process.terminate()
                assert process.wait(60) == 0, log.read_text()
            finally:
                process.kill()
                process.wait()


def build(name: str, folder: Path) -> Image:
    """Carry out the build stage of deploy/<name>.Dockerfile."""
    first, final = stages(ROOT / "deploy" / f"{name}.Dockerfile")
    work, venv = folder / "build", folder / "venv"
    work.mkdir(parents=True)
    inherited = {key: value for key, value in os.environ.items() if key not in ("VIRTUAL_ENV", "PYTHONPATH")}
    path = os.pathsep.join([str(Path(sys.executable).parent), inherited["PATH"]])
    for instruction in first.instructions:
        if instruction.name == "COPY":
            source, target = instruction.words
            copied = work / target / Path(source).name if target.endswith("/") else work / target
            if target == "./":
                copied = work / source
            copied.parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, copied, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / source, copied)
        elif instruction.name == "RUN":
            env = {**inherited, "PATH": path, "VENV": str(venv), "UV_NATIVE_TLS": "true"}
            done = subprocess.run(
                ["sh", "-ec", instruction.text], cwd=work, env=env, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, f"{instruction.text}\n{done.stdout}{done.stderr}"
    words = [word for name in ("ENTRYPOINT", "CMD") for line in final.all(name) for word in line.words]
    settings = {key: value for key, value in final.env.items() if key not in ("PATH", "VENV", "HF_HOME")}
    return Image(
        venv,
        [str(venv / "bin" / words[0]), *words[1:]],
        {"PATH": f"{venv}/bin:/usr/bin:/bin", "HF_HUB_OFFLINE": "1", **settings},
    )


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Image]:
    return {name: build(name, tmp_path_factory.mktemp(name)) for name in ("api", "worker", "flower", "command")}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def answers(url: str) -> bool:
    try:
        return httpx.get(url, trust_env=False).is_success
    except httpx.TransportError:
        return False


def test_images_run_a_rollout(images: dict[str, Image], redis_url: str, tmp_path: Path) -> None:
    api_port, flower_port = free_port(), free_port()
    url, flower = f"http://127.0.0.1:{api_port}", f"http://127.0.0.1:{flower_port}"
    redis = {"ROLLOUTPOOL_REDIS_URL": redis_url}
    key, entry = make_key("tests", [KeyScope.SUBMIT, KeyScope.READ])
    shared = {"ROLLOUTPOOL_SECRETS_FILE": str(secrets_file()), "ROLLOUTPOOL_ALLOWED_TARGETS": "127.0.0.1"}
    tokenizer = load_tokenizer(TINY)
    with ExitStack() as stack:
        start = stack.enter_context
        # As in their images they listen on all addresses.
        keys = {"ROLLOUTPOOL_API_KEYS": entry.entry()}
        start(images["api"].running(tmp_path / "api.log", ROLLOUT_SERVER_PORT=str(api_port), **keys, **shared, **redis))
        start(images["worker"].running(tmp_path / "worker.log", ROLLOUTPOOL_TOKENIZERS=TINY, **shared, **redis))
        start(
            images["flower"].running(
                tmp_path / "flower.log",
                ROLLOUTPOOL_FLOWER_PORT=str(flower_port),
                ROLLOUTPOOL_FLOWER_AUTH="user:password",
                **redis,
            )
        )
        eventually(lambda: answers(f"{url}/readyz"), seconds=60)
        app = callback_app(ScriptedPolicy(tokenizer), tokenizer=tokenizer, tools=url, pool_api_key=key)
        trainer = start(serve_callback(app, [0]))
        client = start(RolloutClient(url, key))
        batch = client.submit(
            [{"rollout_id": "image", "messages": [{"role": "user", "content": "Calculate (15 + 23) * 4"}]}],
            defaults={"tokenizer_name": TINY, "callback_api_key": "encrypted by one image, opened by another"},
            trainer=trainer.urls,
        )
        (result,) = batch.results()
        assert result.status == "completed", result.failure
        assert result.samples[0].response_mask == app.get_session("image").response_mask
        found = subprocess.run(
            [images["command"].command[0], "doctor", "--json"],
            env={**images["command"].env, "ROLLOUTPOOL_URL": url, "ROLLOUTPOOL_API_KEY": key},
            capture_output=True,
            text=True,
            check=True,
        )
        verdicts = {finding["check"]: finding["verdict"] for finding in json.loads(found.stdout)["findings"]}
        # This key has no scope `admin`.
        assert (verdicts["API"], verdicts["readiness"], verdicts["workers"]) == ("ok", "ok", "not checked")
        health = [str(images["worker"].venv / "bin" / "python"), "-m", "rolloutpool_worker.process.health"]
        assert subprocess.run(health, env={**images["worker"].env, **redis}, check=False).returncode == 0
        eventually(lambda: answers(f"{flower}/healthcheck"), seconds=60)
        assert httpx.get(f"{flower}/tasks", trust_env=False).status_code == 401
        assert httpx.get(f"{flower}/tasks", auth=("user", "password"), trust_env=False).status_code == 200


@pytest.mark.parametrize("name", ["api", "worker", "command"])
def test_image_has_all_that_its_packages_ask_for(images: dict[str, Image], name: str) -> None:
    uv = Path(sys.executable).with_name("uv")
    done = subprocess.run(
        [str(uv), "pip", "check", "--python", str(images[name].venv / "bin" / "python")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("name", "foreign"),
    [
        ("api", "transformers"),
        ("api", "rolloutpool_worker"),
        ("worker", "fastapi"),
        ("flower", "transformers"),
        ("command", "redis"),
    ],
)
def test_image_lacks_what_is_not_its_own(images: dict[str, Image], name: str, foreign: str) -> None:
    python = str(images[name].venv / "bin" / "python")
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({foreign!r}) is not None)"
    assert subprocess.run([python, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("name", ["api", "worker", "flower"])
def test_image_without_settings_says_which_are_missing(images: dict[str, Image], name: str) -> None:
    done = subprocess.run(images[name].command, env=images[name].env, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "ROLLOUTPOOL_REDIS_URL" in done.stderr
    assert "Traceback" not in done.stderr
