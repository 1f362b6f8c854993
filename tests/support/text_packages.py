"""Stand-ins for SkyRL-Gym and GEM, with the calls that their adapters make; tests/environments has the real ones.

The forms are those of `skyrl_gym` 0.4.0 (`core.Env`, `envs.registration`) and `gem` 0.1.0 (`core.Env`,
`envs.registration`, `utils.seeding`): what is registered, how it is made, and what `init`, `reset` and `step` return.
"""

import importlib.machinery
import random
import sys
import threading
import types
from typing import Any

import pytest

ENDED: list[str] = []
"""What was closed."""
GO_ON = threading.Event()
"""Until it is set, GEM's game hangs where it is told to."""


class _SkyrlGame:
    """As `gsm8k_multi_turn`: the answer is known, there are some turns, and each has a reward."""

    def __init__(self, env_config: Any, extras: dict[str, Any]) -> None:
        self.answer = extras["reward_spec"]["ground_truth"]
        self.most, self.turns, self.extras = env_config.most, 0, extras
        self.thread = threading.get_ident()

    def init(self, prompt: list[dict[str, str]]) -> tuple[list[dict[str, str]], dict[str, Any]]:
        return prompt, {}

    def step(self, action: str) -> dict[str, Any]:
        assert threading.get_ident() == self.thread
        if action == "stop":
            raise StopIteration
        if action == "exit":
            raise SystemExit(3)
        self.turns += 1
        # An environment may change its row.
        self.extras["reward_spec"]["ground_truth"] = "spoilt"
        right, over = action == self.answer, self.turns == self.most
        again: list[dict[str, Any]] = [
            {"role": "user", "content": "Again."},
            {"role": "user", "content": f"Turn {self.turns}."},
        ]
        if action == "look":
            again[1]["content"] = [
                {"type": "text", "text": "See"},
                {"type": "image_url", "image_url": {"url": "base64"}},
            ]
        metadata = {"tool_input": ("db", None), "lock": threading.Lock()}
        done = right or over
        return {"observations": [] if done else again, "reward": int(right), "done": done, "metadata": metadata}

    def get_metrics(self) -> dict[str, Any]:
        return {"steps": self.turns, "name": "n", "ratio": float("nan")}

    def close(self) -> None:
        ENDED.append(self.answer)


class _GemGame:
    """As GEM's games: `reset` seeds the generators of the process, and steps draw from them."""

    def __init__(self, most: int = 100, **_: Any) -> None:
        self.most = most
        self.reset()

    def reset(self, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        if seed is not None:
            random.seed(seed)
        self.turns = 0
        return f"A number up to {self.most}.\n", {"suffix": "Enter your guess."}

    def step(self, action: str) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if action == "hang":
            GO_ON.wait(10)
        self.turns += 1
        drawn = random.randint(1, self.most)
        if action == "look":
            return [{"type": "image", "image": "base64"}], 0.5, False, False, {}
        return f"drawn {drawn}", 0.5, action == "end", self.turns == 4, {"suffix": "Enter your next guess."}


def _put(monkeypatch: pytest.MonkeyPatch, name: str, **names: Any) -> types.ModuleType:
    module = types.ModuleType(name)
    # `find_spec` asks for it.
    module.__spec__ = importlib.machinery.ModuleSpec(name, None)
    for key, value in names.items():
        setattr(module, key, value)
    monkeypatch.setitem(sys.modules, name, module)
    return module


def put_skyrl_gym(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the stand-in imported for SkyRL-Gym until the test ends."""
    registry = {"game": _SkyrlGame}

    def make(id: str, **options: Any) -> _SkyrlGame:
        return registry[id](**options)

    _put(monkeypatch, "skyrl_gym", registry=registry, make=make)
    config = types.SimpleNamespace(create=lambda options: types.SimpleNamespace(**options))
    _put(monkeypatch, "omegaconf", OmegaConf=config)


def put_gem(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the stand-in imported for GEM until the test ends."""
    registry = {"game": _GemGame}

    def make(env_id: str, **options: Any) -> _GemGame:
        return registry[env_id](**options)

    registration = types.SimpleNamespace(ENV_REGISTRY=registry)
    seeding = types.SimpleNamespace(set_seed=random.seed)
    envs, utils = types.SimpleNamespace(registration=registration), types.SimpleNamespace(seeding=seeding)
    _put(monkeypatch, "gem", make=make, envs=envs, utils=utils)
