"""Settings come from the environment, and say what is wrong with it."""

import pytest

from rolloutpool_api.settings import Settings, SettingsInvalid


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv("ROLLOUTPOOL_REDIS_URL", "redis://:hush@127.0.0.1:6379/0")
    return monkeypatch


def test_defaults(environment: pytest.MonkeyPatch) -> None:
    settings = Settings.from_environment()
    assert settings.rollout_server_port == 9000
    assert settings.rolloutpool_api_host == "127.0.0.1"
    assert settings.max_concurrent_rollouts == 100
    assert settings.rollout_timeout_seconds == 600.0
    assert settings.rolloutpool_max_body_mb == 256
    assert settings.broker_url == "redis://:hush@127.0.0.1:6379/0"


def test_every_variable_is_read(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("ROLLOUT_SERVER_PORT", "9100")
    environment.setenv("MAX_CONCURRENT_ROLLOUTS", "7")
    environment.setenv("ROLLOUT_TIMEOUT_SECONDS", "30")
    environment.setenv("ROLLOUTPOOL_BROKER_URL", "rediss://other")
    environment.setenv("ROLLOUTPOOL_LOG_FORMAT", "json")
    settings = Settings.from_environment()
    assert settings.rollout_server_port == 9100
    assert settings.max_concurrent_rollouts == 7
    assert settings.rollout_timeout_seconds == 30.0
    assert settings.broker_url == "rediss://other"
    assert settings.rolloutpool_log_format == "json"


def test_the_redis_url_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLOUTPOOL_REDIS_URL", "")
    with pytest.raises(SettingsInvalid, match="ROLLOUTPOOL_REDIS_URL is not set: export it, for example"):
        Settings.from_environment()


def test_every_fault_is_named_and_no_secret(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("ROLLOUTPOOL_REDIS_URL", "http://:hush@127.0.0.1")
    environment.setenv("ROLLOUT_SERVER_PORT", "70000")
    with pytest.raises(SettingsInvalid) as raised:
        Settings.from_environment()
    lines = str(raised.value).splitlines()
    assert lines == [
        "ROLLOUT_SERVER_PORT: Input should be less than or equal to 65535",
        "ROLLOUTPOOL_REDIS_URL: must start with one of redis://, rediss://, unix://",
    ]


def test_the_representation_holds_no_password(environment: pytest.MonkeyPatch) -> None:
    assert "hush" not in repr(Settings.from_environment())
