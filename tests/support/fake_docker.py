"""A `docker` that writes down how it was called, and runs the command as a process: what a test can see without Docker.

A path of the container stands for the directory that is mounted there, in arguments and variables. What it does not
know ends it with 125, as Docker does.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

FLAGS = {"--rm", "--init"}
OPTIONS = {"--name", "--label", "--memory", "--pids-limit", "--ulimit", "--cap-drop", "--security-opt", "--network"}
OPTIONS |= {"--user", "-v", "-w", "--env-file"}


def fake_docker(folder: Path) -> Path:
    """Makes it in a folder for PATH; it keeps its notes there."""
    script = folder / "docker"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} {Path(__file__)} {folder} "$@"\n')
    script.chmod(0o755)
    return folder


def calls(folder: Path) -> list[dict[str, object]]:
    """How it was called: arguments, its own variables, and the file of variables."""
    notes = folder / "calls"
    return [json.loads(line) for line in notes.read_text().splitlines()] if notes.exists() else []


def main(folder: Path, arguments: list[str]) -> int:
    """Carries out `run` and `rm --force`."""
    note: dict[str, object] = {"arguments": arguments, "environment": dict(os.environ)}
    options: dict[str, str] = {}
    rest = arguments[1:]
    while arguments[0] == "run" and rest and rest[0].startswith("-"):
        if rest[0] not in FLAGS | OPTIONS:
            return 125
        size = 1 if rest[0] in FLAGS else 2
        options[rest[0]] = rest[1]
        rest = rest[size:]
    if "--env-file" in options:
        file = Path(options["--env-file"])
        note |= {"variables": file.read_text(), "mode": file.stat().st_mode & 0o777}
    with (folder / "calls").open("a") as notes:
        notes.write(json.dumps(note) + "\n")
    if arguments[0] == "rm":
        pid = folder / arguments[-1]
        if pid.exists():
            os.killpg(int(pid.read_text()), signal.SIGKILL)
        return 0
    mounted, _, at = options["-v"].partition(":")
    lines = str(note["variables"]).splitlines()
    env = dict(line.replace(at, mounted).split("=", 1) for line in lines)
    command = [part.replace(at, mounted) for part in rest[1:]]
    if shutil.which(command[0]) is None:
        return 127
    # Of no group of the client: a container goes on when its client is killed.
    # It is known by its name before it runs, also if the client is killed at once.
    named = ["sh", "-c", 'echo $$ > "$0"; exec "$@"', str(folder / options["--name"])]
    process = subprocess.Popen(
        [*named, *command],
        env={"PATH": os.environ["PATH"], **env},
        cwd=options["-w"].replace(at, mounted),
        start_new_session=True,
    )
    while process.poll() is None:
        time.sleep(0.02)
    return process.returncode


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
