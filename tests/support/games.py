"""Environments for workers under test, as a user would write them; ROLLOUTPOOL_PLUGINS names this module.

The game: guess a number from 1 to 100, which follows from the seed. The session counts the guesses, and each answer
says which one it was, so an answer shows whether the session has seen the guesses before. What sessions do is written
to the file that GAME_LOG names: `open UID ATTEMPT`, `guess UID ATTEMPT NUMBER`, `close UID ATTEMPT`.
"""

import asyncio
import os
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson
from tests.support.trainer_script import call, say

from rolloutpool_common.errors import EnvironmentFault, RequestFault
from rolloutpool_common.protocol.environments import CrashEffect
from rolloutpool_common.protocol.tools import ToolDefinition, ToolFunction
from rolloutpool_worker.environments import (
    ENVIRONMENTS,
    Environment,
    EnvironmentFull,
    OpenedSession,
    SessionScore,
    StepAnswer,
)
from rolloutpool_worker.tools import ToolFailed

SEED = 7
RIGHT = random.Random(SEED).randint(1, 100)
"""The number, with that seed."""
WRONG = RIGHT - 1
INVITATION = "Guess a number from 1 to 100."


def guess(environment: str, number: int) -> Any:
    """A turn of the policy that guesses: by its words in the game of texts, else by a call."""
    return say(f"{number}") if environment == "text_game" else say(calls=[call("guess", {"number": number})])


GUESS = ToolDefinition(
    function=ToolFunction(
        name="guess",
        description="Guesses the number",
        parameters={"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]},
    )
)


@dataclass
class GameSession:
    """What a session remembers."""

    uid: str
    attempt: int
    number: int
    task: dict[str, Any] = field(default_factory=dict)
    guesses: int = 0
    right: bool = False


class GuessingGame(Environment):
    """The game with a tool."""

    def __init__(self, crash: CrashEffect = CrashEffect.RESTARTABLE, *, places: int | None = None) -> None:
        self.crash = crash
        self.places = places

    async def open(self, task: Any, seed: int | None, rollout_uid: str, attempt: int) -> OpenedSession:
        asked = task or {}
        match asked.get("open"):
            case "full" if attempt < 3:
                raise EnvironmentFull("no room")
            case "wrong task":
                raise RequestFault("there is no such level")
            case "fail":
                raise OSError("secret detail")
            case "hang":
                await asyncio.Event().wait()
        _note("open", rollout_uid, attempt)
        session = GameSession(rollout_uid, attempt, random.Random(seed).randint(1, 100), asked)
        message = {"role": "user", "content": INVITATION}
        return OpenedSession(session, messages=[message], tools=() if self.by_text else (GUESS,))

    async def call(self, session: GameSession, name: str, arguments: dict[str, Any]) -> StepAnswer | str:
        assert name == "guess"
        return await self._guess(session, arguments["number"])

    async def _guess(self, session: GameSession, number: int) -> StepAnswer:
        _note("guess", session.uid, session.attempt, number)
        # In the first attempt only, so that the next one shows what became of the guess.
        if session.task.get("hang_at") == session.guesses + 1 and session.attempt == 1:
            await asyncio.Event().wait()
        match session.task.get("call"):
            case "refuse":
                raise ToolFailed("the shop is closed")
            case "fail":
                raise OSError("secret detail")
            case "fault":
                raise EnvironmentFault("the board is broken", retryable=False)
            case "huge":
                return StepAnswer("x" * 20_000_000)
            case "hang":
                await asyncio.Event().wait()
        session.guesses += 1
        session.right = number == session.number
        if session.right:
            return StepAnswer(f"right at guess {session.guesses}", reward=1.0, done=True, info={"number": number})
        return StepAnswer(f"wrong at guess {session.guesses}", reward=-0.5)

    async def score(self, session: GameSession, transcript: Sequence[dict[str, Any]]) -> SessionScore:
        if session.task.get("score") == "fail" and session.attempt == 1:
            raise OSError("secret detail")
        # The messages are the whole transcript, the session's own included.
        assert any(message["content"] == INVITATION for message in transcript)
        return SessionScore(float(session.right), {"guesses": float(session.guesses)})

    async def close(self, session: GameSession) -> None:
        _note("close", session.uid, session.attempt)
        if session.task.get("close") == "fail":
            raise OSError("secret detail")

    async def snapshot(self, session: GameSession) -> bytes:
        return orjson.dumps([session.number, session.guesses])

    async def restore(
        self, snapshot: bytes, task: Any, seed: int | None, rollout_uid: str, attempt: int
    ) -> OpenedSession:
        _note("restore", rollout_uid, attempt)
        number, guesses = orjson.loads(snapshot)
        return OpenedSession(GameSession(rollout_uid, attempt, number, task or {}, guesses), tools=(GUESS,))


class TextGame(GuessingGame):
    """The same game, in which each message is a guess."""

    by_text = True

    async def step(self, session: GameSession, text: str) -> StepAnswer:
        digits = "".join(filter(str.isdigit, text))
        return await self._guess(session, int(digits or 0))


class ForgetfulGame(GuessingGame):
    """Declares that it can be restarted, and draws another number each time."""

    async def open(self, task: Any, seed: int | None, rollout_uid: str, attempt: int) -> OpenedSession:
        opened = await super().open(task, seed, rollout_uid, attempt)
        # So that an early guess is answered otherwise by the second session.
        opened.session.guesses = attempt
        return opened


class OnceGame(GuessingGame):
    """Has no state, and a tool that must not be called twice."""

    async def open(self, task: Any, seed: int | None, rollout_uid: str, attempt: int) -> OpenedSession:
        return replace(await super().open(task, seed, rollout_uid, attempt), once=frozenset({"guess"}))


def _note(*words: object) -> None:
    if path := os.environ.get("GAME_LOG"):
        # One write, which other processes' writes cannot divide.
        with Path(path).open("a") as file:
            file.write(" ".join(map(str, words)) + "\n")


def deeds(log: Path) -> list[str]:
    """What sessions did, in order."""
    return log.read_text().splitlines()


def still_open(log: Path, uid: str, attempt: int) -> int:
    """How many sessions of an attempt were opened and not closed."""
    counts = Counter(
        line.split()[0] for line in log.read_text().splitlines() if line.split()[1:3] == [uid, str(attempt)]
    )
    return counts["open"] + counts["restore"] - counts["close"]


for _crash in CrashEffect:
    ENVIRONMENTS.register(f"game_{_crash}", GuessingGame(_crash))
ENVIRONMENTS.register("game_once", OnceGame(CrashEffect.STATELESS))
ENVIRONMENTS.register("text_game", TextGame())
ENVIRONMENTS.register("forgetful_game", ForgetfulGame())
