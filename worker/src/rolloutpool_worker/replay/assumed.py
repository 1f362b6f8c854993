"""What is assumed of a result that carries no record: it is of an older version, or its batch wanted none.

Its turns, ids and messages are all there; its options are not. The ones that decide how a rollout runs are chosen so
that it ends where it ended. What cannot be known is said: which tokenizer made it, how it was edited, and what its
environment answered.
"""

from rolloutpool_common.outcomes import FinishReason
from rolloutpool_common.protocol.drift import DriftLabel
from rolloutpool_common.protocol.replay import ReplayRecord
from rolloutpool_common.protocol.result import Alignment, RolloutResult
from rolloutpool_worker.recorded import RecordLacks

__all__ = ["assumed_record"]


def assumed_record(result: RolloutResult, tokenizer: str | None) -> ReplayRecord:
    """Makes a record for a result without one.

    Args:
        result: Of a rollout that has ended.
        tokenizer: The one that it ran with, by name or directory; None where that is not known.

    Raises:
        RecordLacks: It cannot be run again without its record; the message says why.
    """
    if tokenizer is None:
        raise RecordLacks("it carries no record, so its tokenizer is not known; name it with --tokenizer")
    if any(turn.drift == DriftLabel.EDITED for turn in result.turns):
        raise RecordLacks("it carries no record, and its history was edited: what the edit took out is not there")
    if result.environment is not None:
        raise RecordLacks("it carries no record, so what its environment answered is not known")
    given = next((i for i, message in enumerate(result.messages) if message.role == "assistant"), len(result.messages))
    turns, sampled = len(result.turns), sum(turn.sampled_tokens for turn in result.turns)
    engine = any(sample.logprobs_mode is not None for sample in result.samples)
    options: dict[str, object] = {
        "tokenizer_name": tokenizer,
        "max_turns": turns if result.finish_reason is FinishReason.MAX_TURNS else 100,
        "max_tokens_total": sampled if result.finish_reason is FinishReason.MAX_TOKENS else 1_000_000,
        "allow_unverified": result.alignment is Alignment.UNVERIFIED,
        # Which engine it was plays no part: it is not asked.
        **({"protocol": "vllm"} if engine else {}),
    }
    return ReplayRecord(options=options, given=given)
