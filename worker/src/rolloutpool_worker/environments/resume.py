"""Opens the session of an attempt, and brings it to where an earlier attempt's session was.

What the journal has of that session, and what is done with it, is declared by the environment (`CrashEffect`):

| `crash` | the next attempt |
|---|---|
| `stateless` | opens a session, and goes on |
| `restartable` | opens a session with the same task and seed, makes the journaled calls again, compares the answers |
| `snapshot` | opens one at the journal's last snapshot, or a fresh one where no answer was journaled yet |
| `none` | fails: `EnvironmentLost` |

For example, a worker died while it ran the third turn's call of a restartable game:

    journal    environment, turn 1, observation, turn 2, observation, turn 3
    session    open, call of turn 1 (compared), call of turn 2 (compared)    then the agent runs the call of turn 3

A call of which no answer is in the journal was made in the lost session or not. In the new one it was not, so it is
made once there. That is why sessions are never shared between attempts.
"""

import base64
from collections.abc import Sequence
from typing import Any

from rolloutpool_common.errors import EnvironmentDiverged, EnvironmentFault, EnvironmentLost, RequestChanged
from rolloutpool_common.protocol.environments import CrashEffect, EnvironmentStep
from rolloutpool_common.protocol.journal import EnvironmentRecord, JournalRecord, ObservationRecord, TurnRecord
from rolloutpool_common.protocol.messages import MessagesInvalid, json_messages, text_of
from rolloutpool_worker.environments.base import StepAnswer
from rolloutpool_worker.environments.session import SessionLife
from rolloutpool_worker.tools.arguments import parse_arguments


async def open_session(life: SessionLife, records: Sequence[JournalRecord]) -> EnvironmentRecord | None:
    """Opens a session that fits what earlier attempts have journaled."""
    before = next((record for record in records if isinstance(record, EnvironmentRecord)), None)
    crash, name = life.environment.crash, life.choice.name
    if before is not None and crash is CrashEffect.NONE:
        raise EnvironmentLost(f"environment {name}: {EnvironmentLost.__doc__}")
    snapshot = _last_snapshot(records) if crash is CrashEffect.SNAPSHOT else None
    await life.open(snapshot)
    if before is None:
        return EnvironmentRecord(name=name, crash=crash, messages=_in_normal_form(life), tools_digest=life.tools_digest)
    if life.tools_digest != before.tools_digest:
        if snapshot is not None and not life.tools:
            raise EnvironmentFault(
                f"environment {name}: restore returned a session without tools, and open had returned some; they are "
                "part of the prompt, so return the same from both",
                retryable=False,
            )
        raise RequestChanged(f"environment {name} has other tools than at the attempt before")
    if snapshot is None and _in_normal_form(life) != before.messages:
        raise EnvironmentDiverged(f"environment {name}: a fresh session begins with other messages")
    life.messages = before.messages
    if crash is CrashEffect.RESTARTABLE:
        await _ask_again(life, records)
        # They are in the journal already.
        await life.take_facts()
    return None


def _in_normal_form(life: SessionLife) -> list[dict[str, Any]]:
    try:
        return json_messages(life.messages)
    except MessagesInvalid as error:
        raise EnvironmentFault(
            f"environment {life.choice.name}: it opened with something that is not a message: {error}", retryable=False
        ) from None


def _last_snapshot(records: Sequence[JournalRecord]) -> bytes | None:
    for record in reversed(records):
        if isinstance(record, ObservationRecord) and record.environment and record.environment.snapshot is not None:
            return base64.b64decode(record.environment.snapshot)
    return None


async def _ask_again(life: SessionLife, records: Sequence[JournalRecord]) -> None:
    turn: TurnRecord | None = None
    for record in records:
        if isinstance(record, TurnRecord):
            turn = record
        elif isinstance(record, ObservationRecord) and record.environment is not None and turn is not None:
            for step in record.environment.steps:
                answer = await _ask_step_again(life, turn, step)
                _compare(life, turn, step, answer, record.messages[step.place]["content"])


async def _ask_step_again(life: SessionLife, turn: TurnRecord, step: EnvironmentStep) -> StepAnswer:
    if life.environment.by_text:
        return await life.step(text_of(turn.message))
    function = turn.message["tool_calls"][step.place]["function"]
    arguments = function["arguments"]
    # A call with other arguments never reached the session, so it has no step in the journal.
    given = await parse_arguments(arguments) if isinstance(arguments, str) else arguments
    return await life.call(function["name"], given, place=step.place)


def _compare(life: SessionLife, turn: TurnRecord, step: EnvironmentStep, answer: StepAnswer, text: str) -> None:
    if (answer.content, answer.reward, answer.done) != (text, step.reward, step.done):
        raise EnvironmentDiverged(
            f"environment {life.choice.name}: the fresh session answered call {step.place + 1} of turn "
            f"{turn.summary.turn} otherwise than the one before; is it really `restartable`, and was it given a seed?"
        )
