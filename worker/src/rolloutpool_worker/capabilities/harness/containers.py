"""DockerRuntime: each program in a container of its own, by the command `docker`.

1. A place is a directory of the runner's machine, which the container has as `/home/agent`. It sees nothing else of the
   machine, has no capabilities, and is of the runner's user, so that its files can be deleted.
2. Its variables, the key among them, go into a file that the runner alone can read: arguments can be read by everybody
   on the machine. The file is removed at the end.
3. A container has the name of its place. Where the program is to end, also that of a runner which was killed, its
   container is removed by name: without its client it would run on.

What `docker` itself gets of the runner's environment is where its daemon is. So no image, and no variable of a rollout,
reaches anything else of it.
"""

import asyncio
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from rolloutpool_worker.capabilities.harness.places import HOMES, delete_left_places, made_place, variables_file
from rolloutpool_worker.capabilities.harness.presets import Preset
from rolloutpool_worker.capabilities.harness.runner_settings import RunnerSettings
from rolloutpool_worker.capabilities.harness.runtime import (
    ProgramEnd,
    ProgramMissing,
    lay_out,
    run_command,
    variables,
)

HOME = "/home/agent"


class DockerRuntime:
    """Containers on the runner's machine."""

    def __init__(self, settings: RunnerSettings) -> None:
        """Raises `ProgramMissing` where there is no `docker`."""
        found = shutil.which("docker")
        if found is None:
            raise ProgramMissing("ROLLOUTPOOL_RUNNER_PROCESS=docker, and there is no docker in PATH")
        self._settings = settings
        self._docker = found

    async def run(self, preset: Preset, values: Mapping[str, str]) -> ProgramEnd:
        """See `Runtime.run`."""
        image = preset.image or self._settings.runner_image
        if image is None:
            raise ProgramMissing("its container has no image: set harness.image, or ROLLOUTPOOL_RUNNER_IMAGE here")
        filled = preset.filled({**values, "home": HOME})
        async with made_place(HOMES, self._settings.runner_places) as place:
            await asyncio.to_thread(lay_out, place, filled.files)
            file = str(_write_variables(variables(self._settings, HOME, filled.env), place))
            ended = False
            try:
                last = ["--env-file", file, "-v", f"{place}:{HOME}", image, *filled.command]
                end = await self._call(place, "run", *self._options(place.name), *last)
                ended = end.code >= 0
                return end
            finally:
                if not ended:
                    # Cancelled once more, it is removed all the same.
                    await asyncio.shield(self._remove(place))

    async def clear(self) -> int:
        """See `Runtime.clear`."""
        return await delete_left_places(self._settings, self._remove)

    async def _remove(self, place: Path) -> None:
        await self._call(place, "rm", "--force", place.name)

    async def _call(self, place: Path, *arguments: str) -> ProgramEnd:
        env = {
            name: text for name, text in os.environ.items() if name in ("PATH", "HOME") or name.startswith("DOCKER_")
        }
        return await run_command([self._docker, *arguments], env, place)

    def _options(self, name: str) -> list[str]:
        settings = self._settings
        return [
            *("--rm", "--init", "--name", name, "--label", "rolloutpool=place"),
            *("--memory", f"{settings.runner_memory_mb}m", "--pids-limit", str(settings.runner_pids)),
            *("--ulimit", f"fsize={settings.runner_file_mb * 2**20}", "--ulimit", "core=0"),
            *("--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
            *("--network", settings.runner_network or "bridge", "--user", f"{os.getuid()}:{os.getgid()}"),
            *("-w", f"{HOME}/work"),
        ]


def _write_variables(given: Mapping[str, str], place: Path) -> Path:
    """Writes variables as `docker` reads them; raises `ProgramMissing` where it could not."""
    for name, text in given.items():
        if any(one in text for one in "\n\r\0"):
            raise ProgramMissing(f"variable {name[:64]!r} holds a line break, which containers cannot be given")
    path = variables_file(place)
    path.touch(0o600, exist_ok=False)
    path.write_text("".join(f"{name}={text}\n" for name, text in given.items()))
    return path
