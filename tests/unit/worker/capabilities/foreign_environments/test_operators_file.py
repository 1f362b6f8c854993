"""The operator's file: what is made of it, and what is refused before a worker starts."""

from pathlib import Path

import pytest
from tests.support.text_packages import put_gem, put_skyrl_gym

from rolloutpool_common.protocol.environments import CrashEffect
from rolloutpool_common.security.targets import Targets
from rolloutpool_worker.capabilities.foreign_environments.gem import GemEnvironment
from rolloutpool_worker.capabilities.foreign_environments.http import HttpEnvironment
from rolloutpool_worker.capabilities.foreign_environments.openenv import OpenEnvEnvironment
from rolloutpool_worker.capabilities.foreign_environments.operators_file import (
    EnvironmentsFileInvalid,
    load_environments,
)
from rolloutpool_worker.capabilities.foreign_environments.skyrl_gym import SkyrlGymEnvironment
from rolloutpool_worker.environments.base import ENVIRONMENTS, Environment
from rolloutpool_worker.plugins import NameTaken

GOOD = """
[wordle]
kind = "http"
url = "http://127.0.0.1:8100/"
crash = "restartable"
places = 64
headers = {Authorization = "Bearer s3cret"}

[plain]
kind = "http"
url = "http://localhost:8101"

[sockets]
kind = "openenv"
url = "http://localhost:8102"
action_field = "message"

[math]
kind = "skyrl_gym"
id = "game"
options = {most = 3}

[number]
kind = "gem"
id = "game"
crash = "restartable"
"""


@pytest.fixture
def things(monkeypatch: pytest.MonkeyPatch) -> dict[str, Environment]:
    """A registry without anything."""
    empty: dict[str, Environment] = {}
    monkeypatch.setattr(ENVIRONMENTS, "_things", empty)
    return empty


def written(folder: Path, text: str | bytes, mode: int = 0o600) -> Path:
    path = folder / "environments.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    path.chmod(mode)
    return path


def test_each_entry_becomes_an_environment(
    tmp_path: Path, things: dict[str, Environment], monkeypatch: pytest.MonkeyPatch
) -> None:
    put_skyrl_gym(monkeypatch)
    put_gem(monkeypatch)
    load_environments(written(tmp_path, GOOD), Targets.loopback())
    wordle, plain = things["wordle"], things["plain"]
    assert isinstance(wordle, HttpEnvironment)
    assert (wordle.crash, wordle.places) == (CrashEffect.RESTARTABLE, 64)
    # Where nothing is declared, nothing is promised.
    assert (plain.crash, plain.places) == (CrashEffect.NONE, None)
    families = {name: (type(one), one.by_text, one.crash) for name, one in things.items() if name != "wordle"}
    assert families == {
        "plain": (HttpEnvironment, False, CrashEffect.NONE),
        "sockets": (OpenEnvEnvironment, True, CrashEffect.NONE),
        "math": (SkyrlGymEnvironment, True, CrashEffect.NONE),
        "number": (GemEnvironment, True, CrashEffect.RESTARTABLE),
    }


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[a", "is no TOML"),
        (b"\xff", "is no TOML"),
        ("a = 1", r"\[a\] needs kind = one of \['gem', 'http'"),
        ("[a]\nurl = 'http://127.0.0.1'", r"\[a\] needs kind = one of .*, got None"),
        ("[a]\nkind = 'smtp'", "got 'smtp'"),
        ("[a]\nkind = 'http'", "url: Field required"),
        ("[a]\nkind = 'http'\nurl = 'ftp://x'", "url: .* must be an HTTP/HTTPS URL"),
        ("[a]\nkind = 'http'\nurl = 'http://127.0.0.1'\ntoken = 's3cret'", "token: Extra inputs"),
        ("[a]\nkind = 'http'\nurl = 'http://10.0.0.1'", "url: 10.0.0.1 at port 80 is in no network"),
        ("[a]\nkind = 'http'\nurl = 'http://169.254.169.254'", "url: 169.254.169.254 is never called"),
        ("[a]\nkind = 'openenv'\nurl = 'http://10.0.0.1'", "url: 10.0.0.1 at port 80 is in no network"),
        ("[a]\nkind = 'http'\nurl = 'http://u:s3cret@127.0.0.1'", "url: must not hold user and password"),
    ],
)
def test_nonsense_stops_the_start_and_shows_no_secret(
    tmp_path: Path, things: dict[str, Environment], text: str | bytes, fault: str
) -> None:
    with pytest.raises(EnvironmentsFileInvalid, match=fault) as raised:
        load_environments(written(tmp_path, text), Targets.loopback())
    assert "s3cret" not in str(raised.value)
    assert things == {}


def test_a_file_that_others_may_read_or_that_is_not_there_is_refused(tmp_path: Path) -> None:
    for mode in (0o604, 0o620):
        with pytest.raises(EnvironmentsFileInvalid, match="chmod 600"):
            load_environments(written(tmp_path, GOOD, mode), Targets.loopback())
    with pytest.raises(EnvironmentsFileInvalid, match="cannot be read: No such file"):
        load_environments(tmp_path / "missing", Targets.loopback())


def test_a_name_that_a_plug_in_has_is_refused(tmp_path: Path, things: dict[str, Environment]) -> None:
    things["plain"] = Environment()
    with pytest.raises(NameTaken, match="'plain' is taken twice"):
        load_environments(written(tmp_path, GOOD), Targets.loopback())
