"""The operator's file: environments behind servers, with their addresses and secrets, and those of packages.

    [wordle]                                  # the name that rollouts give
    kind = "http"
    url = "http://10.1.2.3:8100"
    crash = "restartable"
    places = 64                               # sessions at once in one worker process
    headers = {Authorization = "Bearer …"}

It is TOML. A rollout names an environment and gives it a task and a seed; where its server is, only this file says.
Each address passes the rules of `ROLLOUTPOOL_ALLOWED_TARGETS`, here and at each connection.
"""

import stat
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from rolloutpool_common.errors import RolloutPoolError
from rolloutpool_common.security.targets import Targets
from rolloutpool_worker.capabilities.foreign_environments.gem import GemEnvironment
from rolloutpool_worker.capabilities.foreign_environments.http import HttpEnvironment, HttpServer
from rolloutpool_worker.capabilities.foreign_environments.mcp import McpEnvironment, McpServer
from rolloutpool_worker.capabilities.foreign_environments.openenv import OpenEnvEnvironment, OpenEnvServer
from rolloutpool_worker.capabilities.foreign_environments.package import PackageGame
from rolloutpool_worker.capabilities.foreign_environments.skyrl_gym import SkyrlGymEnvironment
from rolloutpool_worker.environments.base import ENVIRONMENTS, Environment

SETTING = "ROLLOUTPOOL_ENVIRONMENTS_FILE"
KINDS: dict[str, tuple[type[BaseModel], Callable[[str, Any, Targets], Environment]]] = {
    "gem": (PackageGame, lambda name, game, _: GemEnvironment(name, game)),
    "http": (HttpServer, HttpEnvironment),
    "mcp": (McpServer, McpEnvironment),
    "openenv": (OpenEnvServer, OpenEnvEnvironment),
    "skyrl_gym": (PackageGame, lambda name, game, _: SkyrlGymEnvironment(name, game)),
}
"""By the word in the file: what stands under it, and what is made of that."""


class EnvironmentsFileInvalid(RolloutPoolError):
    """The file of environments cannot be used."""


def load_environments(path: Path, targets: Targets) -> None:
    """Registers the environments of the operator's file."""
    for name, entry in _read(path).items():
        ENVIRONMENTS.register(name, _make(name, entry, targets, path))


def _read(path: Path) -> dict[str, Any]:
    try:
        mode = path.stat().st_mode
        entries = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise EnvironmentsFileInvalid(f"{SETTING}: {path} cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        # The position only: a line of the file may hold a key.
        raise EnvironmentsFileInvalid(f"{SETTING}: {path} is no TOML: {str(error)[:200]}") from None
    # What others can change may send the operator's keys elsewhere.
    if mode & (stat.S_IRWXO | stat.S_IWGRP):
        raise EnvironmentsFileInvalid(f"{SETTING}: others may read or change {path}; chmod 600 it")
    return entries


def _make(name: str, entry: Any, targets: Targets, path: Path) -> Environment:
    at = f"{SETTING}: {path}: [{name}]"
    kind = entry.pop("kind", None) if isinstance(entry, dict) else None
    if kind not in KINDS:
        raise EnvironmentsFileInvalid(f"{at} needs kind = one of {sorted(KINDS)}, got {kind!r}")
    form, make = KINDS[kind]
    try:
        server = form.model_validate(entry)
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors(include_input=False))
        raise EnvironmentsFileInvalid(f"{at} {faults}") from None
    # Not of each kind.
    url = getattr(server, "url", None)
    if url is not None and (verdict := targets.refuse_url(url)):
        raise EnvironmentsFileInvalid(f"{at} url: {verdict}")
    return make(name, server, targets)
