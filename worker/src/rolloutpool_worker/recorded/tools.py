"""Tools that answer from a script: nothing is run for a turn whose results are recorded."""

from collections.abc import Mapping, Sequence
from typing import Any

from rolloutpool_common.protocol.messages import ToolCall
from rolloutpool_common.protocol.result import ToolTime
from rolloutpool_worker.recorded.script import RecordEnds, RecordMismatch, Script, shown_calls
from rolloutpool_worker.tools import ToolContext, ToolRunner


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
