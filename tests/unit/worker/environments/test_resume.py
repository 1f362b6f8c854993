"""What the next attempt's session is, by what the environment declares; and what must agree with the journal."""

import base64
from dataclasses import replace
from typing import Any

import orjson
import pytest
from tests.support.games import (
    GUESS,
    INVITATION,
    RIGHT,
    SEED,
    WRONG,
    ForgetfulGame,
    GameSession,
    GuessingGame,
)
from tests.support.journals import observation_record, turn_record

from rolloutpool_common.errors import EnvironmentDiverged, EnvironmentFault, RequestChanged
from rolloutpool_common.protocol.environments import CrashEffect, EnvironmentChoice, EnvironmentFacts, EnvironmentStep
from rolloutpool_common.protocol.journal import (
    EnvironmentRecord,
    ObservationRecord,
    TurnRecord,
    encode_record,
    parse_record,
)
from rolloutpool_worker.environments import Environment, EnvironmentHost, OpenedSession, SessionLife
from rolloutpool_worker.environments.resume import open_session

INVITED = {"role": "user", "content": INVITATION, "tool_calls": None, "tool_call_id": None}


def life_of(environment: Environment) -> SessionLife:
    host = EnvironmentHost(seconds=5.0, result_bytes=1000)
    return SessionLife(environment, EnvironmentChoice(name="game", seed=SEED), "b-0", 2, host)


async def first_record(environment: Environment) -> EnvironmentRecord:
    record = await open_session(life_of(environment), [])
    assert record is not None
    again = parse_record(encode_record(record))
    assert again == record
    return record


def played(
    *numbers: int, texts: tuple[str, ...] = (), snapshot: str | None = None
) -> tuple[TurnRecord, ObservationRecord]:
    """A turn of so many calls, and their answers."""
    calls = [
        {"id": f"c{n}", "type": "function", "function": {"name": "guess", "arguments": f'{{"number": {number}}}'}}
        for n, number in enumerate(numbers)
    ]
    turn = turn_record("x")
    turn = replace(turn, message={**turn.message, "tool_calls": calls})
    answers = texts or tuple(f"wrong at guess {n}" for n in range(1, len(numbers) + 1))
    messages = [
        {"role": "tool", "content": text, "tool_calls": None, "tool_call_id": f"c{n}"} for n, text in enumerate(answers)
    ]
    steps = tuple(EnvironmentStep(n, -0.5) for n in range(len(numbers)))
    return turn, replace(observation_record(0), messages=messages, environment=EnvironmentFacts(steps, snapshot))


def state_of(life: SessionLife) -> GameSession:
    session = life._session
    assert isinstance(session, GameSession)
    return session


async def test_a_restartable_one_gets_the_calls_again() -> None:
    game = GuessingGame()
    life = life_of(game)
    assert await open_session(life, [await first_record(game), *played(WRONG, WRONG), turn_record("y")]) is None
    assert state_of(life).guesses == 2
    assert life.messages == [INVITED]
    # What was asked again is in the journal already.
    assert await life.take_facts() is None


async def test_calls_that_never_reached_the_session_are_not_made_again() -> None:
    game = GuessingGame()
    turn, observation = played(WRONG, WRONG, WRONG, texts=("Error: Invalid", "wrong at guess 1", "Error: Unknown"))
    facts = EnvironmentFacts((EnvironmentStep(1, -0.5),))
    observation = replace(observation, environment=facts)
    life = life_of(game)
    # Messages that no session has answered are no steps either.
    await open_session(life, [await first_record(game), turn, observation, turn, observation_record(3)])
    assert state_of(life).guesses == 1


@pytest.mark.parametrize(
    "changed",
    [
        {"texts": ("wrong at guess 2",)},
        {"texts": ("right at guess 1",)},
    ],
)
async def test_another_text_is_a_difference(changed: dict[str, Any]) -> None:
    game = GuessingGame()
    with pytest.raises(EnvironmentDiverged, match="answered call 1 of turn 1 otherwise") as raised:
        await open_session(life_of(game), [await first_record(game), *played(WRONG, **changed)])
    assert not raised.value.retryable


@pytest.mark.parametrize("step", [EnvironmentStep(0, 1.0), EnvironmentStep(0, -0.5, done=True), EnvironmentStep(0)])
async def test_another_reward_or_end_is_a_difference(step: EnvironmentStep) -> None:
    game = GuessingGame()
    turn, observation = played(WRONG)
    observation = replace(observation, environment=EnvironmentFacts((step,)))
    with pytest.raises(EnvironmentDiverged):
        await open_session(life_of(game), [await first_record(game), turn, observation])


async def test_one_that_is_not_what_it_declares_is_found_out() -> None:
    game = ForgetfulGame()
    with pytest.raises(EnvironmentDiverged):
        await open_session(life_of(game), [await first_record(game), *played(WRONG)])


@pytest.mark.parametrize("crash", [CrashEffect.STATELESS, CrashEffect.RESTARTABLE, CrashEffect.SNAPSHOT])
async def test_other_tools_would_make_another_prompt(crash: CrashEffect) -> None:
    game = GuessingGame(crash)
    record = replace(await first_record(game), tools_digest="00" * 16)
    with pytest.raises(RequestChanged, match="environment game has other tools"):
        await open_session(life_of(game), [record])


async def test_a_session_that_is_restored_without_its_tools_says_so() -> None:
    class Forgetful(GuessingGame):
        async def restore(self, *about: Any, **named: Any) -> OpenedSession:
            return replace(await super().restore(*about, **named), tools=())

    first = await first_record(GuessingGame(CrashEffect.SNAPSHOT))
    snapshot = base64.b64encode(orjson.dumps([RIGHT, 1])).decode()
    life = life_of(Forgetful(CrashEffect.SNAPSHOT))
    with pytest.raises(EnvironmentFault, match="restore returned a session without tools") as raised:
        await open_session(life, [first, *played(WRONG, snapshot=snapshot)])
    assert not raised.value.retryable
    await life.close()


async def test_other_messages_at_the_opening_are_a_difference() -> None:
    game = GuessingGame()
    record = replace(await first_record(game), messages=[{**INVITED, "content": "Guess!"}])
    with pytest.raises(EnvironmentDiverged, match="begins with other messages"):
        await open_session(life_of(game), [record])


async def test_what_is_no_message_opens_nothing() -> None:
    class Odd(GuessingGame):
        def __init__(self, message: dict[str, Any]) -> None:
            super().__init__()
            self.message = message

        async def open(self, task: Any, seed: int | None, rollout_uid: str, attempt: int) -> OpenedSession:
            return OpenedSession(None, messages=[INVITED, self.message], tools=[GUESS])

    with pytest.raises(EnvironmentFault, match=r"something that is not a message: messages\[1\].role: .*'bard'"):
        await open_session(life_of(Odd({"role": "bard", "content": "la"})), [])
    image = {"type": "image_url", "image_url": {"url": "base64"}}
    with pytest.raises(
        EnvironmentFault, match=r"environment game: .*messages\[1\].content\[0\]: type image_url; only"
    ) as f:
        await open_session(life_of(Odd({"role": "user", "content": [image]})), [])
    assert (f.value.retryable, "base64" in f.value.message) == (False, False)
