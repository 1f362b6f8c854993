"""Settings of any process: required variables, old names, and what is printed about an environment that is wrong."""

import pytest

from rolloutpool_common.process.settings import ActorSettings, SettingsInvalid, refuse_start


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv("ROLLOUTPOOL_REDIS_URL", "redis://:hush@127.0.0.1:6379/0")
    return monkeypatch


def test_celery_uses_the_same_redis_unless_it_has_its_own(environment: pytest.MonkeyPatch) -> None:
    assert ActorSettings.from_environment().celery_url == "redis://:hush@127.0.0.1:6379/0"
    environment.setenv("ROLLOUTPOOL_BROKER_URL", "rediss://other")
    assert ActorSettings.from_environment().celery_url == "rediss://other"


def test_what_is_empty_is_not_set(environment: pytest.MonkeyPatch) -> None:
    unset = ActorSettings.from_environment()
    for field in ActorSettings.model_fields:
        if field != "redis_url":
            environment.setenv(f"ROLLOUTPOOL_{field.upper()}", "")
    assert ActorSettings.from_environment() == unset
    environment.setenv("ROLLOUTPOOL_REDIS_URL", "")
    with pytest.raises(SettingsInvalid, match="ROLLOUTPOOL_REDIS_URL is not set"):
        ActorSettings.from_environment()


def test_every_bad_variable_is_a_line_without_its_value(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ROLLOUTPOOL_BROKER_URL", "http://:hush@h")
    monkeypatch.setenv("ROLLOUTPOOL_ALLOWED_TARGETS", "http://x")
    with pytest.raises(SettingsInvalid) as raised:
        ActorSettings.from_environment()
    assert refuse_start("worker", raised.value) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[:2] == [
        "rolloutpool worker: ROLLOUTPOOL_REDIS_URL is not set: export it, for example "
        "ROLLOUTPOOL_REDIS_URL=redis://127.0.0.1:6379/0",
        "rolloutpool worker: ROLLOUTPOOL_BROKER_URL: must start with one of redis://, rediss://, unix://",
    ]
    bad = "rolloutpool worker: ROLLOUTPOOL_ALLOWED_TARGETS: 'http://x' is neither a host nor a network"
    assert lines[2].startswith(bad)
    assert len(lines) == 3


@pytest.mark.parametrize("url", ["redis://:hush@a:26379,b:26379/0", "redis://:hush@a,b/0", "redis://:hu/sh@a"])
def test_one_redis_has_one_address(environment: pytest.MonkeyPatch, url: str) -> None:
    environment.setenv("ROLLOUTPOOL_REDIS_URL", url)
    with pytest.raises(SettingsInvalid, match=r"^ROLLOUTPOOL_REDIS_URL: must name one host and port") as raised:
        ActorSettings.from_environment()
    assert "hu" not in str(raised.value)


@pytest.mark.parametrize("rest", ["/pool", "/1/2", "/0?db=7", "/?db=7"])
def test_a_database_has_a_number_in_its_place(environment: pytest.MonkeyPatch, rest: str) -> None:
    """The API took 0, 12 or 7, where workers ended again and again with kombu's error."""
    environment.setenv("ROLLOUTPOOL_REDIS_URL", f"redis://:hush@a{rest}")
    with pytest.raises(SettingsInvalid, match=r"^ROLLOUTPOOL_REDIS_URL: .*redis://HOST:6379/0") as raised:
        ActorSettings.from_environment()
    assert "hush" not in str(raised.value)
    for right in ("redis://a", "redis://a/", "rediss://a/3?ssl_cert_reqs=none", "unix:///run/redis.sock?db=7"):
        environment.setenv("ROLLOUTPOOL_REDIS_URL", right)
        ActorSettings.from_environment()
