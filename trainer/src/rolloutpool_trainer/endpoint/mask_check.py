"""Compares the `response_mask` of a request with the mask that the endpoint's own session says is right.

The mask covers what was added to the context since the policy last sampled: one 0 per token of tool results and
template text. The policy sampled none of these tokens, so no 1 can be right. Turn 1 has nothing to cover.
"""

from typing import Any

from rolloutpool_trainer.endpoint.errors import EndpointError


class MaskMismatch(EndpointError):
    """The `response_mask` of a request is not the one that this turn must have."""

    def __init__(self, message: str, *, expected: int | None, received: Any, **where: Any) -> None:
        super().__init__(422, "mask_mismatch", message, expected=expected, received=received, **where)


def check_mask(mask: object, expected: int, *, rollout_id: str, turn: int, cut: bool = False) -> None:
    """Compares a request's `response_mask`, as parsed from JSON, with the number of tokens that nobody sampled.

    `expected` tokens stand between the last sampled one and this generation point. If there are none, or if the prompt
    became shorter than what was sampled, only null is right. It became shorter by a `cut` where messages of the history
    were changed or left out and the request does not say so; then no mask is right. Raises `MaskMismatch`.
    """
    where = {"rollout_id": rollout_id, "turn": turn}
    wanted = expected if expected > 0 else None
    if cut and wanted is None:
        raise MaskMismatch(
            "the history was cut, which no mask can say: send X-History-Edited, and one 0 per token of the new prompt",
            expected=None,
            received=None if mask is None else "a mask",
            **where,
        )
    if mask is None:
        if wanted is not None:
            raise MaskMismatch(
                f"response_mask is missing: {wanted} tokens follow the last sampled one; send {wanted} zeros",
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
        # In Python JSON's true and 0.0 equal 1 and 0. A sender that confuses them has another bug, so they are refused.
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
