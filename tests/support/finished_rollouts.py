"""Finished rollouts to look at, whose tokens are bytes: what a token reads is known without a tokenizer."""

from collections.abc import Sequence
from typing import Any

from rolloutpool_common.outcomes import FinishReason, RolloutStatus
from rolloutpool_common.protocol.drift import PromptDifference
from rolloutpool_common.protocol.result import RolloutResult, Sample, SampleSegment, StopToken, TurnSummary
from rolloutpool_common.protocol.token_pieces import TokenPieces

BYTES = TokenPieces(
    tokenizer_sha256="bytes",
    pieces=[chr(byte) if byte < 128 else None for byte in range(256)],
    partial={byte: f"{byte:02x}" for byte in range(128, 256)},
)
"""What these tokens read, as the API says it."""

Part = tuple[str, str, int]
"""(kind, text, turn)"""


def decode(ids: Sequence[int]) -> str:
    """Bytes as UTF-8."""
    return bytes(ids).decode("utf-8", "replace")


def sample(prompt: str, *parts: Part, policy: str | None = None, untrained: Sequence[int] = ()) -> Sample:
    """A sample of these parts; sampled ones are trained unless their turn is in `untrained`."""
    ids: list[int] = []
    mask: list[int] = []
    segments: list[SampleSegment] = []
    for kind, text, turn in parts:
        new = text.encode()
        version = policy if kind == "sampled" else None
        segments.append(SampleSegment(kind=kind, start=len(ids), n=len(new), turn=turn, policy_version=version))
        ids += new
        mask += [int(kind == "sampled" and turn not in untrained)] * len(new)
    return Sample(
        prompt_ids=list(prompt.encode()),
        response_ids=ids,
        response_mask=mask,
        response_logprobs=[-0.5 * value for value in mask],
        segments=segments,
    )


def turn(number: int, drift: str = "none", **changes: Any) -> TurnSummary:
    """What happened in a turn."""
    fields: dict[str, Any] = {
        "turn": number,
        "prompt_tokens": 20,
        "sampled_tokens": 8,
        "mask_sent": None if number == 1 else 12,
        "finish_reason": "stop",
        "drift": drift,
        "tool_calls": 1,
        "stop": StopToken.SAMPLED,
    }
    return TurnSummary(**{**fields, **changes})


def rollout(*samples: Sample, **changes: Any) -> RolloutResult:
    """A completed rollout with these samples."""
    fields: dict[str, Any] = {
        "uid": f"b{'0' * 32}-0",
        "rollout_id": "r0",
        "batch_id": f"b{'0' * 32}",
        "index": 0,
        "status": RolloutStatus.COMPLETED,
        "finish_reason": FinishReason.STOP,
        "samples": list(samples),
    }
    return RolloutResult(**{**fields, **changes})


def forked(**changes: Any) -> RolloutResult:
    """Two samples: the trainer dropped the thinking of turn 1 from the prompt of turn 2."""
    first = sample("<user>ask", ("sampled", "<think>hm</think>über日</s>", 1), policy="step-7")
    second = sample(
        "<user>askyes</s>\n<tool>42\n",
        ("sampled", "so it is 42", 2),
        ("synth_close", "</s>", 2),
        ("glue", "\n<user>sure?\n", 2),
        ("prefill", "I ", 3),
        ("sampled", "am", 3),
        policy="step-8",
    )
    turns = [turn(1, policy_version="step-7"), turn(2, "thinking_stripped"), turn(3)]
    return rollout(first, second, turns=turns, drift={"thinking_stripped": 1}, alignment="forked", **changes)


def two_lines(**changes: Any) -> RolloutResult:
    """Two lines of talk with two turns each: the first one forks at its turn 2, the second one does not."""
    first = sample("<user>ask", ("sampled", "<think>hm</think>yes</s>", 1))
    fork = sample("<user>askyes</s>", ("sampled", "so it is 42", 2))
    other = sample("<user>look", ("sampled", "where?", 1), ("glue", "there", 1), ("sampled", "found", 2))
    difference = PromptDifference(position=9, before=[107], expected=[60], echoed=[121])
    turns = [turn(1), turn(1), turn(2, "thinking_stripped", difference=difference), turn(2)]
    return rollout(first, fork, other, turns=turns, drift={"thinking_stripped": 1}, alignment="forked", **changes)
