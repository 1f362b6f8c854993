"""Environments of the real OpenEnv package, and its server for them. Importing this needs the package.

The game of tests/support/games.py: a number from 1 to 100 that follows from the seed; each answer counts the guesses.
"""

import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import uvicorn
from fastapi import FastAPI
from fastmcp import FastMCP
from openenv.core.env_server.http_server import HTTPEnvServer
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.types import Action, Observation, State


class SaidAction(Action):
    """A message."""

    message: str


class TypedAction(Action):
    """A guess."""

    number: int


class NumberObservation(Observation):
    """What the guess was worth."""

    said: str = ""


class _Number:
    """What both environments remember."""

    def __init__(self) -> None:
        self.number = self.guesses = 0

    def begin(self, seed: int | None) -> None:
        self.number, self.guesses = random.Random(seed).randint(1, 100), 0

    def guess(self, number: int) -> tuple[str, bool]:
        if number == 1000:
            raise ValueError("the fuse is out")
        if number == 2000:
            # Longer than a close waits, shorter than a test.
            time.sleep(12)
        self.guesses += 1
        right = number == self.number
        if number == 3000:
            return "x" * 20_000_000, right
        return f"{'right' if right else 'wrong'} at guess {self.guesses}", right


class NumberEnvironment(Environment):
    """The game with typed actions, or with messages."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self.game = _Number()

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> NumberObservation:
        self.game.begin(seed)
        return NumberObservation(said=f"Guess a number{kwargs.get('how', '.')}", metadata={"hidden": self.game.number})

    def step(self, action: Action, timeout_s: float | None = None, **kwargs: Any) -> NumberObservation:
        text = action.message if isinstance(action, SaidAction) else str(action.number)
        said, right = self.game.guess(int("".join(filter(str.isdigit, text)) or 0))
        metadata = {"hidden": self.game.number}
        return NumberObservation(said=said, reward=1.0 if right else -0.5, done=right, metadata=metadata)

    @property
    def state(self) -> State:
        return State(step_count=self.game.guesses)


class NumberTools(MCPEnvironment):
    """The game with a tool of MCP."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        self.game = _Number()
        server: Any = FastMCP("numbers")

        def guess(number: int) -> str:
            """Guesses the number."""
            return self.game.guess(number)[0]

        server.tool(guess)
        super().__init__(server)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Observation:
        self.game.begin(seed)
        return Observation()

    def _step_impl(self, action: Action, timeout_s: float | None = None, **kwargs: Any) -> Observation:
        raise NotImplementedError

    @property
    def state(self) -> State:
        return State(step_count=self.game.guesses)


@dataclass
class ServedGames:
    """A real server."""

    url: str
    server: HTTPEnvServer

    def sessions(self) -> int:
        """How many it keeps."""
        return int(self.server.active_sessions)


@contextmanager
def serve_games(
    environment: Callable[[], Any], action: type[Action], *, capacity: int = 100, ping_seconds: float = 20.0
) -> Iterator[ServedGames]:
    """Serves an environment as `openenv` does, by uvicorn.

    Args:
        environment: Makes one for each session.
        action: Its form.
        capacity: Sessions at once.
        ping_seconds: After so long a connection is asked whether it lives, and has as long to answer.
    """
    made = HTTPEnvServer(environment, action, NumberObservation, max_concurrent_envs=capacity)
    app = FastAPI()
    made.register_routes(app)
    config = uvicorn.Config(
        app, log_config=None, ws_ping_interval=ping_seconds, ws_ping_timeout=ping_seconds, timeout_graceful_shutdown=1
    )
    with socket.create_server(("127.0.0.1", 0)) as listener:
        served = uvicorn.Server(config)
        thread = threading.Thread(target=served.run, args=([listener],), daemon=True)
        thread.start()
        while not served.started:
            assert thread.is_alive()
            time.sleep(0.01)
        try:
            yield ServedGames(f"http://127.0.0.1:{listener.getsockname()[1]}", made)
        finally:
            served.should_exit = True
            thread.join(10)
