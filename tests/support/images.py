"""The images of deploy/, in two forms: as their build stages leave them in a folder, or as `make images` built them.

A test runs commands in either, and does not know which it has. What only an engine adds is missing in the first: the
base image and the user. The network is this machine's in both.
"""

import os
import shutil
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import yaml
from scripts.build_images import BUILDAH, CHROOT
from tests.support.dockerfile import Stage, stages

BUILT = "ROLLOUTPOOL_BUILT_IMAGES" in os.environ
"""Whether to test what `make images` built."""
UNPACK = "ROLLOUTPOOL_UNPACK_IMAGES" in os.environ
"""Whether to carry out the build stages here: `make test-images`."""
ROOT = Path(__file__).parents[2]
NAMES = ("api", "worker", "flower", "command")
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
"""Compose's, by name."""
UID = 10001
"""Whom the images run as."""


class Image(ABC):
    """What commands can be run in."""

    @abstractmethod
    def inside(self, words: Sequence[str], settings: dict[str, str]) -> tuple[list[str], dict[str, str]]:
        """What to start here so that these words are run in the image, and with which environment."""

    @property
    @abstractmethod
    def command(self) -> list[str]:
        """How the image starts by itself."""

    def run(self, *words: str, stdin: str | None = None, **settings: str) -> subprocess.CompletedProcess[str]:
        """A command that ends by itself; without words the image's own."""
        command, env = self.inside(words or self.command, settings)
        return subprocess.run(command, env=env, input=stdin, capture_output=True, text=True, check=False)

    @contextmanager
    def running(self, log: Path, **settings: str) -> Iterator[subprocess.Popen[bytes]]:
        """Its process, ended by SIGTERM as an engine would."""
        command, env = self.inside(self.command, settings)
        with log.open("wb") as output:
            process = subprocess.Popen(command, env=env, cwd=log.parent, stdout=output, stderr=subprocess.STDOUT)
            try:
                yield process
                send(process, signal.SIGTERM)
                assert process.wait(60) == 0, log.read_text()
            finally:
                send(process, signal.SIGKILL)
                process.wait()


def send(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Sends a signal to the image's process: buildah's own processes around it would kill it, and not pass it on."""
    if process.poll() is not None:
        return
    pid = process.pid
    while Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"buildah"):
        # Of any of its threads.
        children = " ".join(file.read_text() for file in Path(f"/proc/{pid}/task").glob("*/children")).split()
        if not children:
            break
        pid = int(children[0])
    os.kill(pid, number)


def answers(url: str) -> bool:
    """Whether a server is there and content."""
    try:
        return httpx.get(url, trust_env=False).is_success
    except httpx.TransportError:
        return False


def final_words(stage: Stage) -> list[str]:
    """What a container of this stage starts."""
    return [word for name in ("ENTRYPOINT", "CMD") for line in stage.all(name) for word in line.words]


@dataclass(frozen=True)
class UnpackedImage(Image):
    """What a build stage left behind in a folder."""

    venv: Path
    final: Stage

    @property
    def command(self) -> list[str]:
        return final_words(self.final)

    def inside(self, words: Sequence[str], settings: dict[str, str]) -> tuple[list[str], dict[str, str]]:
        own = {key: value for key, value in self.final.env.items() if key not in ("PATH", "VENV", "HF_HOME")}
        env = {"PATH": f"{self.venv}/bin:/usr/bin:/bin", "HF_HUB_OFFLINE": "1", **own, **settings}
        return [str(self.venv / "bin" / words[0]), *words[1:]], env


def unpack(name: str, folder: Path) -> UnpackedImage:
    """Carries out the COPY and RUN lines of the build stage of deploy/<name>.Dockerfile, with VENV in the folder."""
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
    return UnpackedImage(venv, final)


@dataclass(frozen=True)
class BuiltImage(Image):
    """A working container of an image that `make images` built; its processes run in a chroot, as the image's user."""

    name: str
    container: str
    folder: Path
    """Holds copies of files that are mounted."""
    service: Mapping[str, Any] = field(default_factory=dict)
    """Of Compose: what is mounted."""
    plugins: Path | None = None
    """What ROLLOUTPOOL_PLUGIN_PATH names."""

    @property
    def command(self) -> list[str]:
        return final_words(stages(ROOT / "deploy" / f"{self.name}.Dockerfile")[-1])

    def inside(self, words: Sequence[str], settings: dict[str, str]) -> tuple[list[str], dict[str, str]]:
        options = [*CHROOT, "--cap-drop", "all"]
        for path in self.service.get("tmpfs", []):
            options += ["--mount", f"type=tmpfs,destination={path.partition(':')[0]}"]
        for volume in self.service.get("volumes", []):
            if self.plugins is not None and "ROLLOUTPOOL_PLUGIN_PATH" in volume:
                options += ["--volume", f"{self.plugins}:{':'.join(volume.rsplit(':', 2)[1:])}"]
        for key, value in {"HF_HUB_OFFLINE": "1", **settings}.items():
            given = value
            if key.endswith("_FILE"):
                given = f"/run/secrets/{Path(value).name}"
                options += ["--volume", f"{self._owned(Path(value))}:{given}:ro"]
            options += ["--env", f"{key}={given}"]
        return [*BUILDAH, "run", *options, self.container, "--", *words], dict(os.environ)

    def _owned(self, file: Path) -> Path:
        copied = self.folder / file.name
        if not copied.exists():
            shutil.copy(file, copied)
            # As Compose mounts it: the process reads it by a group.
            copied.chmod(0o440)
            # Without root's rights, the images' users are of a name space of this user's own.
            own = [] if os.geteuid() == 0 else ["buildah", "unshare"]
            subprocess.run([*own, "chown", f"0:{UID}", str(copied)], check=True)
        return copied


@contextmanager
def container_of(
    name: str, folder: Path, service: Mapping[str, Any] | None = None, plugins: Path | None = None
) -> Iterator[BuiltImage]:
    """A working container of one of our images, or of their base; removed at the end."""
    image = f"localhost/rolloutpool-{name}" if ":" not in name else name
    made = subprocess.run([*BUILDAH, "from", "--pull-never", image], capture_output=True, text=True, check=True)
    container = made.stdout.strip()
    try:
        yield BuiltImage(name, container, folder, service or {}, plugins)
    finally:
        subprocess.run([*BUILDAH, "rm", container], capture_output=True, check=True)
