"""Why the callback endpoint says no, and the check of `response_mask` that it says no for most.

A refusal is an HTTP status with a JSON body `{"error": {...}}` that says what happened and what to change. It holds
ids, counts and positions, never text of a conversation.
"""

from typing import Any

import orjson

__all__ = ["EndpointError", "MaskMismatch", "check_mask"]


class EndpointError(Exception):
    """The request gets an error status instead of a turn."""

    def __init__(self, status: int, kind: str, message: str, **details: Any) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        """What a program tells refusals apart by."""
        self.message = message
        self.details = details

    def body(self) -> bytes:
        """The answer's JSON."""
        return orjson.dumps({"error": {"type": self.kind, "message": self.message, **self.details}})


class MaskMismatch(EndpointError):
    """The `response_mask` of a request is not the one that this turn must have."""

    def __init__(self, message: str, *, expected: int | None, received: Any, **where: Any) -> None:
        super().__init__(422, "mask_mismatch", message, expected=expected, received=received, **where)


def check_mask(mask: object, expected: int, *, rollout_id: str, turn: int) -> None:
    """Compares a request's `response_mask`, as parsed from JSON, with the number of tokens that nobody sampled.

    Args:
        mask: null, or `expected` zeros.
        expected: tokens between the last sampled one and this generation point; where there are none, or where the
            prompt became shorter than what was sampled, only null is right.
        rollout_id: for the message.
        turn: for the message.

    Raises:
        MaskMismatch: with `expected` and `received`: lengths, or the offending value with its `position`.
    """
    where = {"rollout_id": rollout_id, "turn": turn}
    wanted = expected if expected > 0 else None
    if mask is None:
        if wanted is not None:
            raise MaskMismatch(
                f"response_mask is missing: {wanted} tokens were put behind the last sampled one; send {wanted} zeros",
                expected=wanted,
                received=None,
                **where,
            )
        return
    if not isinstance(mask, list):
        raise MaskMismatch(
            "response_mask must be null or a list of zeros",
            expected=wanted,
            received=type(mask).__name__,
            **where,
        )
    for position, value in enumerate(mask):
        # JSON's true and 0.0 equal 1 and 0 in Python; a sender that confuses them has another bug behind it.
        if type(value) is not int or value not in (0, 1):
            raise MaskMismatch(
                f"response_mask[{position}] is neither 0 nor 1",
                expected=wanted,
                received=value if isinstance(value, bool | int | float | None) else type(value).__name__,
                position=position,
                **where,
            )
    if wanted is None and turn == 1:
        raise MaskMismatch(
            "turn 1 has nothing to mask: the prompt is no part of the response; send null",
            expected=None,
            received=len(mask),
            **where,
        )
    if len(mask) != expected:
        raise MaskMismatch(
            f"response_mask has {len(mask)} values, but the prompt adds {expected} tokens to what was seen and sampled",
            expected=wanted,
            received=len(mask),
            **where,
        )
    if 1 in mask:
        raise MaskMismatch(
            f"response_mask[{mask.index(1)}] is 1, but the policy sampled none of these tokens; send zeros",
            expected=wanted,
            received=1,
            position=mask.index(1),
            **where,
        )
