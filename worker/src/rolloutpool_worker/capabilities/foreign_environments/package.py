"""Environments that are Python packages, in which each message of the policy is an action.

They run inside the worker. Derive from `PackageEnvironment` and say how a game is made, how it answers and how it ends;
`skyrl_gym` and `gem` do that for two packages. All these calls may block: each session has a thread of its own.

The operator's file names the environment of the package, and modules that register further ones:

    [math]
    kind = "skyrl_gym"
    id = "gsm8k_multi_turn"
    crash = "restartable"

The score is the sum of the rewards. So a session cannot be replaced by one that begins in the middle (`stateless`).
"""

import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
from pydantic import BaseModel, ConfigDict, Field, field_validator

from rolloutpool_common.protocol.environments import CrashEffect
from rolloutpool_worker.capabilities.foreign_environments.session_thread import SessionThread
from rolloutpool_worker.environments.base import Environment, OpenedSession, SessionScore, StepAnswer
from rolloutpool_worker.plugins import PluginBroken, import_plugins


class PackageGame(BaseModel):
    """One entry of the operator's file."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    id: str = Field(min_length=1)
    """By which the package knows the environment."""
    modules: list[str] = Field(default_factory=list)
    """Imported before; they register environments of the operator's own."""
    options: dict[str, Any] = Field(default_factory=dict, repr=False)
    """What the environment is made with."""
    crash: CrashEffect = CrashEffect.NONE
    places: int | None = Field(default=None, ge=1)

    @field_validator("crash")
    @classmethod
    def _crash(cls, value: CrashEffect) -> CrashEffect:
        if value not in (CrashEffect.RESTARTABLE, CrashEffect.NONE):
            raise ValueError("such an environment is `restartable` or `none`")
        return value


@dataclass
class _PackageSession:
    thread: SessionThread
    game: Any
    rewards: list[float] = field(default_factory=list)


class PackageEnvironment(Environment):
    """One environment of a package."""

    by_text = True
    package: str
    """What is imported."""
    distribution: str
    """What is installed."""

    def __init__(self, name: str, entry: PackageGame) -> None:
        """Imports the package, and makes nothing yet."""
        if importlib.util.find_spec(self.package) is None:
            raise PluginBroken(f"environment {name} needs a package: pip install {self.distribution}")
        self.crash = entry.crash
        self.places = entry.places
        self.name = name
        self.entry = entry
        self.library: Any = importlib.import_module(self.package)
        import_plugins(tuple(entry.modules))
        if entry.id not in self.registered():
            raise PluginBroken(f"environment {name}: {self.package} has no {entry.id!r}; see `modules`")

    def registered(self) -> Mapping[str, Any]:
        """Returns what the package can make, by id."""
        raise NotImplementedError

    def begin(self, task: Any, seed: int | None) -> tuple[Any, list[dict[str, Any]]]:
        """Makes a game; returns it with the messages that it begins with."""
        raise NotImplementedError

    def act(self, game: Any, text: str) -> StepAnswer:
        """Answers a message."""
        raise NotImplementedError

    def parts(self, game: Any) -> dict[str, float]:
        """Returns what else the game says of itself at the end, as numbers."""
        del game
        return {}

    def end(self, game: Any) -> None:
        """Frees what a game holds."""
        if hasattr(game, "close"):
            game.close()

    async def open(self, task: Any, seed: int | None, rollout_uid: str, attempt: int) -> OpenedSession:
        """Makes a game."""
        thread, made = SessionThread(f"{self.name} {rollout_uid} {attempt}"), list[Any]()

        def begin() -> list[dict[str, Any]]:
            game, messages = self.begin(task, seed)
            made.append(game)
            return messages

        try:
            messages = await thread.run(begin)
        except BaseException:
            # A game that is made too late is ended too.
            thread.end(lambda: self.end(made[0]))
            raise
        return OpenedSession(_PackageSession(thread, made[0]), messages=messages)

    async def step(self, session: _PackageSession, text: str) -> StepAnswer:
        """Passes the message on."""
        answer = await session.thread.run(self.act, session.game, text)
        session.rewards += [] if answer.reward is None else [answer.reward]
        return answer

    async def score(self, session: _PackageSession, transcript: Sequence[dict[str, Any]]) -> SessionScore:
        """Adds the rewards up."""
        del transcript
        return SessionScore(sum(session.rewards), await session.thread.run(self.parts, session.game))

    async def close(self, session: _PackageSession) -> None:
        """Frees the game, after a call that may still run, and ends the thread."""
        try:
            await session.thread.run(self.end, session.game)
        finally:
            session.thread.end()


def as_json(info: Any) -> dict[str, Any]:
    """Returns what an environment says beside its text, in a form that can be journaled."""
    options = orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY
    try:
        written = orjson.loads(orjson.dumps(info, default=str, option=options))
    except (TypeError, ValueError):
        return {}
    return written if isinstance(written, dict) else {}
