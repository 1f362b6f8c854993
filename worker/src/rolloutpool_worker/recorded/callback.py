"""RecordedCallback answers turns from a script, and asks the trainer for turns that the script does not have.

It answers as a trainer did: with its prompt, so that the ledger compares it again. It takes a mask only where its
length is the recorded one, and refuses others with 422, as a trainer does that checks masks.
"""

from typing import Any

from rolloutpool_common.errors import TrainerStatusError
from rolloutpool_worker.policy.body import MessageBytes, TurnBody
from rolloutpool_worker.policy.callback import CallbackChannel, TurnCall
from rolloutpool_worker.policy.reply import Reply
from rolloutpool_worker.recorded.script import RecordedTurn, Script

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
