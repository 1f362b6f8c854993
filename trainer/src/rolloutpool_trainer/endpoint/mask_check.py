"""Compares the `response_mask` of a request with the mask that the endpoint's own session says is right.

The mask covers what was added to the context since the policy last sampled: one 0 per token of tool results and
template text. The policy sampled none of these tokens, so no 1 can be right. Turn 1 has nothing to cover.
"""

from typing import Any, NamedTuple

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
    fault = _fault(mask, expected, turn, cut=cut)
    if fault is not None:
        where: dict[str, Any] = {"rollout_id": rollout_id, "turn": turn}
        if fault.position is not None:
            where["position"] = fault.position
        wanted = expected if expected > 0 else None
        raise MaskMismatch(fault.message, expected=wanted, received=fault.received, **where)


class _Fault(NamedTuple):
    message: str
    received: Any
    """What the request has instead, in short."""
    position: int | None = None
    """Of the value that is wrong."""


def _fault(mask: object, expected: int, turn: int, *, cut: bool) -> _Fault | None:
    nothing = expected <= 0
    if cut and nothing:
        cure = "send X-History-Edited, and one 0 per token of the new prompt"
        return _Fault(f"the history was cut, which no mask can say: {cure}", None if mask is None else "a mask")
    if mask is None:
        if nothing:
            return None
        missing = f"{expected} tokens follow the last sampled one; send {expected} zeros"
        return _Fault(f"response_mask is missing: {missing}", None)
    if not isinstance(mask, list):
        return _Fault("response_mask must be null or a list of zeros", type(mask).__name__)
    for position, value in enumerate(mask):
        # In Python JSON's true and 0.0 equal 1 and 0. A sender that confuses them has another bug, so they are refused.
        if type(value) is not int or value not in (0, 1):
            shown = value if isinstance(value, bool | int | float | None) else type(value).__name__
            return _Fault(f"response_mask[{position}] is neither 0 nor 1", shown, position)
    if nothing and turn == 1:
        return _Fault("turn 1 has nothing to mask: the prompt is no part of the response; send null", len(mask))
    if len(mask) != expected:
        added = f"the prompt adds {expected} tokens to what was seen and sampled"
        return _Fault(f"response_mask has {len(mask)} values, but {added}", len(mask))
    if 1 in mask:
        place = mask.index(1)
        sampled = "the policy sampled none of these tokens; send zeros"
        return _Fault(f"response_mask[{place}] is 1, but {sampled}", 1, place)
    return None
