"""Settings come from the environment, under their own names, and a wrong one says what it must be."""

from typing import Any

import pytest
from pydantic import ValidationError

from rolloutpool_worker.settings import WorkerSettings


def settings(monkeypatch: pytest.MonkeyPatch, **env: str) -> WorkerSettings:
    for name, value in {"ROLLOUTPOOL_REDIS_URL": "redis://:s3cret@h:6379/0", **env}.items():
        monkeypatch.setenv(name, value)
    return WorkerSettings()


@pytest.mark.parametrize(
    ("text", "delay"),
    [
        ("", (0, 0)),
        ("0", (0, 0)),
        ("50", (50, 50)),
        ("10-100", (10, 100)),
        ("0.5-0.5", (0.5, 0.5)),
        (" 1 - 2 ", (1, 2)),
    ],
)
def test_a_delay_is_a_number_or_a_range(monkeypatch: pytest.MonkeyPatch, text: str, delay: tuple[float, float]) -> None:
    assert settings(monkeypatch, CALCULATOR_DELAY_MS=text).calculator_delay_ms == delay


@pytest.mark.parametrize("text", [" ", "fast", "-5", "10-", "100-10", "1-2-3", "nan", "inf", "0-inf", "[1, 2]"])
def test_anything_else_is_no_delay(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    with pytest.raises(ValidationError, match="CALCULATOR_DELAY_MS must"):
        settings(monkeypatch, CALCULATOR_DELAY_MS=text)


def test_lists_are_separated_by_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    made = settings(monkeypatch, ROLLOUTPOOL_PLUGINS=" a.b , c,,", ROLLOUTPOOL_TOKENIZERS="")
    assert (made.plugins, made.tokenizers) == (("a.b", "c"), ())


@pytest.mark.parametrize(
    "env",
    [
        {"ROLLOUTPOOL_WORKER_SLOTS": "0"},
        {"ROLLOUTPOOL_ROLLOUTS_PER_TICKET": "17"},
        {"ROLLOUTPOOL_DRAIN_SECONDS": "-1"},
        {"TOKENIZER_CACHE_SIZE": "0"},
        {"HTTP_CLIENT_TIMEOUT": "0"},
        {"ROLLOUTPOOL_MAX_REPLY_MB": "0"},
        {"ROLLOUTPOOL_TRAINER_ATTEMPTS": "21"},
        {"ROLLOUTPOOL_MAX_TOOL_CALLS": "0"},
        {"ROLLOUTPOOL_MAX_TOOL_ARGUMENTS_KB": "0"},
        {"ROLLOUTPOOL_MAX_TOOL_RESULT_KB": "0"},
    ],
)
def test_limits(monkeypatch: pytest.MonkeyPatch, env: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        settings(monkeypatch, **env)
