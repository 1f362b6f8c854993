"""The session of an environment that answers from a script.

In a replay there is no environment: `RecordedEnvironment` stands for it, and all that a session says is recorded. Where
only the first turns are recorded, it is real, and these turns alone are answered from the record. What brings its
session to where it was after them is done before the agent begins (`rollout.environment`).
"""

from collections.abc import Sequence
from typing import Any

from rolloutpool_common.protocol.environments import CrashEffect, EnvironmentFacts, EnvironmentReport
from rolloutpool_common.protocol.replay import ReplayRecord
from rolloutpool_common.protocol.tools import ToolDefinition
from rolloutpool_worker.environments import Environment, OpenedSession, SessionLife, SessionScore, StepAnswer
from rolloutpool_worker.recorded.script import RecordEnds, Script


class RecordedEnvironment(Environment):
    """An environment that can be opened and scored, and answers nothing else."""

    def __init__(self, script: Script, record: ReplayRecord, report: EnvironmentReport | None) -> None:
        """Takes what the result says of the environment; None where the rollout ended before it was scored."""
        self.crash = CrashEffect.STATELESS if script.session is None else script.session.crash
        self.by_text = record.by_text
        self._script = script
        self._tools = [ToolDefinition.model_validate(definition) for definition in record.tools]
        self._report = report

    async def open(self, task: Any, seed: int | None, rollout_uid: str, attempt: int) -> OpenedSession:
        """Opens with the recorded messages and tools."""
        del task, seed, rollout_uid, attempt
        return OpenedSession(None, self._script.opened, self._tools)

    async def score(self, session: Any, transcript: Sequence[dict[str, Any]]) -> SessionScore | None:
        """Returns the recorded score."""
        del session, transcript
        report = self._report
        return None if report is None or report.reward is None else SessionScore(report.reward, report.parts)


class RecordedSession(SessionLife):
    """A session of which the answers of some turns are recorded."""

    def __init__(self, script: Script, *arguments: Any) -> None:
        """Takes what `SessionLife` takes, after the script."""
        super().__init__(*arguments)
        self._script = script

    async def step(self, text: str) -> StepAnswer:
        """Answers a message from the record, or asks the environment where the record has no answer."""
        turn = self._script.turn(self.turn) if self.turn else None
        if turn is None or turn.answer is None:
            if self._script.whole:
                raise RecordEnds(f"the environment's answer to turn {self.turn} is not in the record")
            return await super().step(text)
        return turn.answer

    async def take_facts(self) -> EnvironmentFacts | None:
        """Returns what the record has of a turn; of others, what the environment has said."""
        turn = self._script.turn(self.turn) if self.turn else None
        # A recorded turn whose calls were not answered has no facts, and its calls were made now.
        if turn is None or (turn.facts is None and not self._script.whole):
            return await super().take_facts()
        return turn.facts
