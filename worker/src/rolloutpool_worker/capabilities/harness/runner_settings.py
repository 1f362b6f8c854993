"""A runner's settings."""

import os
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from rolloutpool_common.process.settings import ActorSettings, Names


class RunnerSettings(ActorSettings):
    """How one runner starts programs."""

    runner_process: Literal["off", "bubblewrap", "docker", "unsafe"] = "off"
    """How programs run on the runner's machine: each in a sandbox of bubblewrap; each in a container, by the command
    `docker`; or `unsafe`, with the runner's own rights, where whoever may submit may do there what the runner may.
    `off` starts none."""
    runner_slots: int = Field(default=4, ge=1, le=1000)
    """Programs that one runner runs at once."""
    runner_memory_mb: int = Field(default=8192, ge=64)
    """Memory of each process of a program, MB, or of its container; what wants more gets none."""
    runner_file_mb: int = Field(default=1024, ge=1)
    """Largest file that a program may write, MB."""
    runner_pass: Names = ()
    """Names of the runner's own variables that programs get too, separated by commas: a token for git, for example."""
    runner_hide: Names = ()
    """Directories that no program sees, separated by commas; needs bubblewrap."""
    runner_places: Path | None = None
    """Directory in which places are made; null takes the system's for temporary files."""
    runner_output: Path | None = None
    """Directory that keeps the end of what each program has printed, a file for each start, until you remove it; null
    keeps nothing. It may hold prompts."""
    runner_image: str | None = None
    """Image of containers where a rollout names none (`harness.image`); needs `docker`."""
    runner_network: str | None = None
    """Network of programs; `host` is this machine's. Empty leaves those in bubblewrap the door alone, and containers
    docker's `bridge`, on which they have to reach it."""
    runner_pids: int = Field(default=1024, ge=8)
    """Processes of a program at the most, in a container its threads too; one that has more is ended, and fails."""
    door_url: str = "http://127.0.0.1:9100"
    """Address under which programs reach a door."""
    plugins: Names = ()
    """Python modules to import at start, which register presets, separated by commas."""

    @field_validator("runner_places")
    @classmethod
    def _can_be_written(cls, value: Path | None) -> Path | None:
        # Each session would fail, one after the other.
        if value is not None and not (value.is_dir() and os.access(value, os.R_OK | os.W_OK | os.X_OK)):
            raise ValueError("no directory in which this runner may make others")
        # A program gets its home by this path, and runs elsewhere.
        return None if value is None else value.absolute()
