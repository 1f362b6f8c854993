"""What docs/tools-and-environments.md says of packages, as written; for the packages that are installed."""

import re
import tomllib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import orjson
import pytest

from rolloutpool_common.protocol.batch import RolloutItem
from rolloutpool_common.security.targets import Targets
from rolloutpool_worker.capabilities.foreign_environments.operators_file import load_environments
from rolloutpool_worker.environments import ENVIRONMENTS, EnvironmentHost, SessionLife

# The packages' own: they warn of their own parts.
pytestmark = pytest.mark.filterwarnings("default")

SECTION = (
    Path(__file__)
    .parents[2]
    .joinpath("docs/tools-and-environments.md")
    .read_text()
    .partition("\n### Packages\n")[2]
    .partition("\n## ")[0]
)
SAYS = {
    "math": ("#### 42", "", True),
    "number": ("I do not know", "At turn 1, you did not provide a valid guess.", True),
}


def block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", SECTION, re.DOTALL)
    assert found
    return found.group(1)


@pytest.mark.parametrize("name", SAYS)
async def test_the_documented_environments_are_played(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = tomllib.loads(block("toml"))[name]
    if find_spec(entry["kind"]) is None:
        pytest.skip(f"needs {entry['kind']}: make test-environments")
    lines = block("toml").split("\n\n")
    path = tmp_path / "environments.toml"
    path.write_text(next(part for part in lines if part.startswith(f"[{name}]")))
    path.chmod(0o600)
    monkeypatch.setattr(ENVIRONMENTS, "_things", {})
    load_environments(path, Targets.none())
    said: dict[str, Any] = {}
    exec(block("python"), said)
    (rollout,) = [one for one in said["rollouts"] if one["environment"]["name"] == name]
    choice = RolloutItem.model_validate(orjson.loads(orjson.dumps(rollout))).environment
    environment = ENVIRONMENTS.get(name)
    assert environment is not None
    assert choice is not None
    life = SessionLife(environment, choice, "b-0", 1, EnvironmentHost(seconds=30.0, result_bytes=1000))
    await life.open()
    assert life.messages
    act, answer, done = SAYS[name]
    stepped = await life.step(act)
    assert (stepped.content, stepped.done) == (answer, done)
    assert await life.score([]) is not None
    await life.close()
