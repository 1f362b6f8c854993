"""RecordedEngine samples turns from a script, and has the engine sample turns that the script does not have.

It answers with ids; their text is parsed again. Prompts are compared where only the first turns are recorded: another
process has rendered them, and a turn may be continued only after the very ids that it was sampled after.
"""

from collections.abc import Sequence

from rolloutpool_common.errors import RequestFault
from rolloutpool_worker.capabilities.engines.channel import LedgerPrompt
from rolloutpool_worker.capabilities.engines.policy import Sampler
from rolloutpool_worker.capabilities.engines.reply import EngineTurn, Finish
from rolloutpool_worker.recorded.script import RecordEnds, Script


class RecordedEngine:
    """An engine of which some turns are recorded."""

    def __init__(self, script: Script, engine: Sampler | None = None) -> None:
        """Takes the record, and what samples the turns behind it; None where nothing may follow."""
        self._script = script
        self._engine = engine

    async def sample(self, turn: int, prompt: LedgerPrompt, *, branch: int = 0) -> EngineTurn:
        """Answers a turn from the record, or asks the engine where the record does not have it."""
        recorded = None if branch else self._script.turn(turn)
        if recorded is None:
            if self._engine is None:
                raise RecordEnds(f"turn {turn} of branch {branch} is not in the record")
            return await self._engine(turn, prompt, branch=branch)
        ids = recorded.prompt_ids
        if not self._script.whole and _joined(ids) != prompt.text:
            raise RequestFault(
                f"turn {turn} of the parent was sampled after {len(ids)} ids, and this worker renders {prompt.length} "
                "others; it has another tokenizer, template or other tools than the parent's worker"
            )
        summary = recorded.summary
        calls = recorded.message.get("tool_calls") or []
        return EngineTurn(
            parts=recorded.parts,
            finish=Finish(summary.finish_reason or Finish.STOP),
            aborts=summary.aborts,
            call_ids=tuple(call["id"] for call in calls),
        )


def _joined(ids: Sequence[int]) -> bytes:
    """Writes ids as they are sent: numbers and commas."""
    return ",".join(map(str, ids)).encode()
