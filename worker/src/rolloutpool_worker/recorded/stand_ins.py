"""What stands in the places of trainer, tools and environment, and answers from a script.

- `RecordedCallback` answers as a trainer did: with its prompt, so that the ledger compares it again. It takes a mask
  only where its length is the recorded one, and refuses others with 422, as a trainer does that checks masks.
- `RecordedTools` runs nothing for a turn whose results are recorded.
- In a replay there is no environment: `RecordedEnvironment` stands for it, and all that a session says is recorded.
  Where only the first turns are recorded, it is real, and `RecordedSession` answers these turns alone from the record.
  What brings its session to where it was after them is done before the agent begins (`rollout.environment`).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from rolloutpool_common.errors import TrainerStatusError
from rolloutpool_common.protocol.environments import CrashEffect, EnvironmentFacts, EnvironmentReport
from rolloutpool_common.protocol.messages import ToolCall
from rolloutpool_common.protocol.replay import ReplayRecord
from rolloutpool_common.protocol.result import ToolTime
from rolloutpool_common.protocol.tools import ToolDefinition
from rolloutpool_worker.environments import Environment, OpenedSession, SessionLife, SessionScore, StepAnswer
from rolloutpool_worker.policy.body import MessageBytes, TurnBody
from rolloutpool_worker.policy.callback import CallbackChannel, TurnCall
from rolloutpool_worker.policy.reply import Reply
from rolloutpool_worker.recorded.script import RecordedTurn, RecordEnds, RecordMismatch, Script, shown_calls
from rolloutpool_worker.tools import ToolContext, ToolRunner

_MASK_REFUSED = 422


class RecordedCallback(CallbackChannel):
    """A trainer of which some turns are recorded."""

    def __init__(self, script: Script, *arguments: Any, **options: Any) -> None:
        """Takes what `CallbackChannel` takes, after the script."""
        super().__init__(*arguments, **options)
        self._script = script
        self._masks: dict[str, int] = {}

    def body(self, messages: MessageBytes, zeros: int, prompt_ids: list[int] | None = None) -> TurnBody:
        """Writes a request as the real channel does, and notes how long its mask is."""
        body = super().body(messages, zeros, prompt_ids)
        self._masks[body.digest] = zeros
        return body

    async def sample(self, call: TurnCall) -> Reply:
        """Answers a turn from the record, or asks the trainer where the record does not have it."""
        # The record is of the main branch.
        turn, sent = None if call.branch else self._script.turn(call.turn), self._masks.get(call.body.digest, 0)
        self._masks.clear()
        if turn is None:
            return await super().sample(call)
        length = turn.summary.mask_sent or 0
        if length != sent:
            raise TrainerStatusError(
                f"turn {call.turn}: recorded with a mask of {length}, not {sent}", status=_MASK_REFUSED
            )
        return _reply(turn)


class RecordedTools(ToolRunner):
    """The tools of a rollout of which some turns are recorded."""

    def __init__(self, script: Script, *arguments: Any, **options: Any) -> None:
        """Takes what `ToolRunner` takes, after the script."""
        super().__init__(*arguments, **options)
        self._script = script
        self._recorded: list[ToolTime] = []

    def take_times(self) -> tuple[ToolTime, ...]:
        """Returns how long each call took, recorded or run now."""
        taken, self._recorded = tuple(self._recorded), []
        return (*taken, *super().take_times())

    async def run(
        self, calls: Sequence[ToolCall], contexts: Sequence[ToolContext], *, faults: Mapping[str, str] | None = None
    ) -> list[dict[str, Any]]:
        """Answers the calls of one turn from the record; arguments and result as of `ToolRunner.run`."""
        turn = self._script.turn(contexts[0].turn) if contexts else None
        results = None if turn is None else turn.results
        if turn is None or results is None:
            if turn is not None and self._script.whole:
                raise RecordEnds(f"the calls of turn {turn.summary.turn} are not answered in the record")
            return await super().run(calls, contexts, faults=faults)
        if [call.id for call in calls] != [message["tool_call_id"] for message in results]:
            recorded = ", ".join(str(message["tool_call_id"]) for message in results)
            now = shown_calls([call.model_dump() for call in calls])
            raise RecordMismatch("tool_calls", recorded, now, turn=turn.summary.turn)
        self._recorded += turn.times
        return results


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


def _reply(turn: RecordedTurn) -> Reply:
    summary = turn.summary
    return Reply(
        message=turn.message,
        finish_reason=summary.finish_reason,
        token_ids=[token for part in turn.parts for token in part.ids],
        logprobs=[logprob for part in turn.parts for logprob in part.logprobs],
        prompt_token_ids=turn.prompt_ids if turn.echoed else None,
        prefix=0,
        policy_version=summary.policy_version,
        keeps_ids=None,
        fingerprint=None,
    )
