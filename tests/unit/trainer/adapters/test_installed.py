"""An adapter whose trainer is missing says what to install."""

import importlib.util
from collections.abc import Callable
from typing import Any

import pytest

from rolloutpool_trainer.adapters.driver import PoolDriver
from rolloutpool_trainer.adapters.installed import needing
from rolloutpool_trainer.adapters.openrlhf import agent_executor
from rolloutpool_trainer.adapters.verifiers import PoolEnvServer
from rolloutpool_trainer.adapters.verl import agent_loop
from rolloutpool_trainer.errors import MissingExtra

DRIVER = PoolDriver("http://127.0.0.1:9", trainer="http://h:1")
MADE: dict[str, Callable[[], Any]] = {
    "verl==0.9.1": lambda: agent_loop(DRIVER, prompt_length=8, response_length=8),
    "openrlhf==0.11.2": lambda: agent_executor(DRIVER, lambda rollout, label: 0.0),
    "verifiers==0.4.0": lambda: PoolEnvServer(DRIVER),
}


@pytest.mark.parametrize("requirement", MADE)
def test_what_is_missing_is_named(requirement: str) -> None:
    name = requirement.partition("=")[0]
    assert importlib.util.find_spec(name) is None, "the default environment has none of these trainers"
    with pytest.raises(MissingExtra, match=f"this adapter needs {name}, which comes with: pip install '{requirement}'"):
        MADE[requirement]()


def test_an_error_within_a_trainer_stays_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ImportError, match="cannot import name 'nothing'"), needing("x==1"):
        from json import nothing  # type: ignore[attr-defined]  # noqa: F401
