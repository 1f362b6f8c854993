"""GEM: games and tasks of the package `gem-llm`, made with `gem.make`.

`options` in the operator's file are what an environment is made with. A task may change those that the file names:

    options = {max_turns = 4}       # a rollout may say: "task": {"max_turns": 6}

The policy reads observations with the prefix and suffix that GEM's own wrapper would add.

GEM draws from Python's global random generators, and `reset` seeds them for the whole process. So each session has
states of its own, which are put in for each call and taken out after it, one call at a time (`_own_randomness`). A call
that holds the generators for more than `LONGEST_CALL_SECONDS` is not waited for: it may hang for ever. What it draws
then may be another session's numbers, which a replay finds (`restartable`).
"""

import random
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rolloutpool_common.errors import EnvironmentFault, RequestFault
from rolloutpool_worker.capabilities.foreign_environments.package import PackageEnvironment, as_json
from rolloutpool_worker.environments.base import StepAnswer

LONGEST_CALL_SECONDS = 5.0


@dataclass
class _Generators:
    """The process' random generators."""

    lock: threading.Lock
    """Held while they are a session's."""


_generators = _Generators(threading.Lock())


@dataclass
class _GemGame:
    env: Any
    states: Any
    """Of the random generators, between the calls."""


class GemEnvironment(PackageEnvironment):
    """One environment of GEM."""

    package = "gem"
    distribution = "gem-llm"

    def registered(self) -> Mapping[str, Any]:
        """Returns the registry."""
        registry: Mapping[str, Any] = self.library.envs.registration.ENV_REGISTRY
        return registry

    def begin(self, task: Any, seed: int | None) -> tuple[Any, list[dict[str, Any]]]:
        """Makes an environment, and resets it with the seed."""
        options = {**self.entry.options, **(task or {})} if isinstance(task, dict | None) else {}
        if not isinstance(task, dict | None) or options.keys() != self.entry.options.keys():
            raise RequestFault(f"environment {self.name}: its task may set {sorted(self.entry.options)}")
        # numpy takes no larger seed.
        seed = None if seed is None else seed % 2**32
        game = _GemGame(None, None)
        with _own_randomness(game):
            self.library.utils.seeding.set_seed(seed)
            game.env = self.library.make(self.entry.id, **options)
            observation, info = game.env.reset(seed=seed)
        return game, [{"role": "user", "content": self._shown(observation, info)}]

    def act(self, game: _GemGame, text: str) -> StepAnswer:
        """Steps with the message."""
        with _own_randomness(game):
            observation, reward, terminated, truncated, info = game.env.step(text)
        done = bool(terminated or truncated)
        said = {**as_json(info), "terminated": bool(terminated), "truncated": bool(truncated)}
        return StepAnswer(self._shown(observation, {} if done else info), float(reward), done, said)

    def _shown(self, observation: Any, info: Mapping[str, Any]) -> str:
        if not isinstance(observation, str):
            kind = type(observation).__name__
            raise EnvironmentFault(
                f"environment {self.name}: its observation is no text ({kind}); only text is supported", retryable=False
            )
        text = f"{info.get('prefix', '')}{observation}"
        suffix = info.get("suffix", "")
        return f"{text}\n{suffix}" if suffix and not text.endswith("\n") else f"{text}{suffix}"

    def end(self, game: _GemGame) -> None:
        """Closes it, where it has a way to."""
        super().end(game.env)


@contextmanager
def _own_randomness(game: _GemGame) -> Iterator[None]:
    # GEM needs numpy, which is no dependency of ours.
    import numpy as np

    lock = _generators.lock
    if not lock.acquire(timeout=LONGEST_CALL_SECONDS):
        lock = _generators.lock = threading.Lock()
        lock.acquire()
    process = random.getstate(), np.random.get_state()
    try:
        if game.states is not None:
            random.setstate(game.states[0])
            np.random.set_state(game.states[1])
        yield
        game.states = random.getstate(), np.random.get_state()
    finally:
        random.setstate(process[0])
        np.random.set_state(process[1])
        lock.release()
