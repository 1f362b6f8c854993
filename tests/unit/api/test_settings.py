"""ApiSettings come from the environment, and say what is wrong with it."""

from pathlib import Path

import pytest

from rolloutpool_api.settings import ApiSettings
from rolloutpool_common.process.settings import SettingsInvalid


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv("ROLLOUTPOOL_REDIS_URL", "redis://:hush@127.0.0.1:6379/0")
    return monkeypatch


def test_every_fault_is_named_and_no_secret(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("ROLLOUTPOOL_REDIS_URL", "http://:hush@127.0.0.1")
    environment.setenv("ROLLOUT_SERVER_PORT", "70000")
    with pytest.raises(SettingsInvalid) as raised:
        ApiSettings.from_environment()
    lines = str(raised.value).splitlines()
    assert lines == [
        "ROLLOUTPOOL_REDIS_URL: must start with one of redis://, rediss://, unix://",
        "ROLLOUT_SERVER_PORT: Input should be less than or equal to 65535",
    ]


def test_the_representation_holds_no_password(environment: pytest.MonkeyPatch) -> None:
    assert "hush" not in repr(ApiSettings.from_environment())


ENTRY = f"job7:submit+read:{'ab' * 32}"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "pool.example"])
def test_beyond_loopback_keys_are_required(environment: pytest.MonkeyPatch, host: str, tmp_path: Path) -> None:
    environment.setenv("ROLLOUTPOOL_API_HOST", host)
    with pytest.raises(SettingsInvalid, match=r"^ROLLOUTPOOL_API_KEYS is not set.*rolloutpool make-key NAME"):
        ApiSettings.from_environment()
    environment.setenv("ROLLOUTPOOL_API_KEYS", ENTRY)
    with pytest.raises(SettingsInvalid, match=r"^ROLLOUTPOOL_SECRETS_FILE is not set.*make-secrets-key"):
        ApiSettings.from_environment()
    environment.setenv("ROLLOUTPOOL_SECRETS_FILE", str(tmp_path / "keys"))
    assert [key.name for key in ApiSettings.from_environment().api_keys] == ["job7"]


def test_keys_come_from_both_variables(environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# the team's\n{ENTRY.replace('job7', 'team')}\n")
    environment.setenv("ROLLOUTPOOL_API_KEYS", ENTRY)
    environment.setenv("ROLLOUTPOOL_API_KEYS_FILE", str(file))
    settings = ApiSettings.from_environment()
    assert [key.name for key in settings.api_keys] == ["job7", "team"]
    assert "ab" * 32 not in repr(settings)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("ROLLOUTPOOL_API_KEYS", "rpk_MARKER", "ROLLOUTPOOL_API_KEYS: an entry must be name:scopes:sha256"),
        ("ROLLOUTPOOL_API_KEYS_FILE", "/no/such/MARKER", "ROLLOUTPOOL_API_KEYS_FILE cannot be read"),
        ("ROLLOUTPOOL_ALLOWED_TARGETS", "http://x", "ROLLOUTPOOL_ALLOWED_TARGETS: 'http://x' is neither"),
        ("ROLLOUTPOOL_V1_NETWORKS", "10.0.0.0/33", "ROLLOUTPOOL_V1_NETWORKS: '10.0.0.0/33' is no network"),
        ("ROLLOUTPOOL_MAX_MESSAGES", "0", "ROLLOUTPOOL_MAX_MESSAGES: "),
    ],
)
def test_what_cannot_be_used_is_named(environment: pytest.MonkeyPatch, name: str, value: str, said: str) -> None:
    environment.setenv(name, value)
    with pytest.raises(SettingsInvalid) as raised:
        ApiSettings.from_environment()
    assert str(raised.value).startswith(said)
    assert "MARKER" not in str(raised.value)


def test_by_default_only_loopback_may_be_called_and_from_elsewhere_nothing(
    environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert ApiSettings.from_environment().targets.refuse_url("http://127.0.0.1:8081") is None
    assert ApiSettings.from_environment().targets.refuse_url("http://10.0.0.1:8081") is not None
    environment.setenv("ROLLOUTPOOL_API_HOST", "0.0.0.0")
    environment.setenv("ROLLOUTPOOL_API_KEYS", ENTRY)
    environment.setenv("ROLLOUTPOOL_SECRETS_FILE", str(tmp_path / "keys"))
    assert ApiSettings.from_environment().targets.refuse_url("http://127.0.0.1:8081") is not None
