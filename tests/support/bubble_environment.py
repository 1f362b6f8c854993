"""An environment for Harbor in a sandbox of bubblewrap, because there is no container engine here.

Its root is a folder, with this machine's programs in it, read-only. What one command leaves running, as Harbor's own
agent leaves a terminal, the next one finds: they share the folder's sockets, and the process ids of the machine.
"""

import asyncio
import shutil
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from harbor.environments.base import BaseEnvironment, ExecResult

FOLDERS = ("app", "tests", "logs/agent", "logs/verifier", "logs/artifacts", "tmp", "root", "usr", "etc", "proc", "dev")


class BubbleEnvironment(BaseEnvironment):
    """One place."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self._root = Path(mkdtemp(prefix="bubble-"))
        super().__init__(*args, **options)

    @staticmethod
    def type() -> str:
        """Its name."""
        return "bubble"

    def _validate_definition(self) -> None:
        pass

    async def start(self, force_build: bool) -> None:
        """Makes the folders of a machine."""
        for name in FOLDERS:
            (self._root / name).mkdir(parents=True, exist_ok=True)
        for name in ("bin", "sbin", "lib", "lib64"):
            (self._root / name).symlink_to(f"usr/{name}")

    async def stop(self, delete: bool) -> None:
        """Ends what was left running, and removes the folder."""
        await self.exec("tmux kill-server", cwd="/")
        shutil.rmtree(self._root)

    def _at(self, path: str) -> Path:
        return self._root / path.lstrip("/")

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        """Copies a file into the place."""
        self._at(target_path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source_path, self._at(target_path))

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        """Copies a folder into it."""
        shutil.copytree(source_dir, self._at(target_dir), dirs_exist_ok=True)

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        """Copies a file out of it."""
        shutil.copy(self._at(source_path), target_path)

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        """Copies a folder out of it."""
        shutil.copytree(self._at(source_dir), target_dir, dirs_exist_ok=True)

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        """Runs a command in it."""
        variables = {"PATH": "/usr/bin:/bin", "HOME": "/root", **(self._merge_env(env) or {})}
        process = await asyncio.create_subprocess_exec(
            *("bwrap", "--bind", str(self._root), "/", "--ro-bind", "/usr", "/usr", "--ro-bind", "/etc", "/etc"),
            *("--proc", "/proc", "--dev", "/dev", "--chdir", cwd or "/app", "--", "bash", "-c", command),
            env=variables,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(timeout_sec):
                out, err = await process.communicate()
        except TimeoutError:
            process.kill()
            raise
        assert process.returncode is not None
        return ExecResult(stdout=out.decode(), stderr=err.decode(), return_code=process.returncode)
