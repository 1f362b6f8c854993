"""The runs that are compared. They differ only in what is named: start, questions, steps and optimiser are equal."""

from dataclasses import dataclass
from enum import StrEnum


class Mask(StrEnum):
    """Which tokens are trained."""

    OURS = "ours"
    """Those that the policy sampled."""
    LENGTHS = "lengths"
    """The length difference's; old log-probabilities are the sampler's, laid out by that mask."""
    LENGTHS_RECOMPUTED = "lengths recomputed"
    """The length difference's; the trainer computes old log-probabilities itself, so only the mask is wrong."""
    SHIFTED = "shifted"
    """Ours, one token too early from the second turn on: one dose of what a length difference does. The trainer
    computes old log-probabilities itself."""
    CONCATENATED = "concatenated"
    """What was sampled as it was sampled, and behind each turn what a render of stand-ins adds for its tools, as TRL
    lays a rollout out."""
    ONES = "ones"
    """All of the response; the trainer computes old log-probabilities itself."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to train."""

    name: str
    title: str
    """In plots and tables."""
    mask: Mask = Mask.OURS
    drifts: bool = True
    """Whether the trainer's template writes a parsed call in another way than it was sampled."""
    rate: float = 1.0
    """The share of the learning rate."""
    fault: float = 0.0
    """The share of model calls that fail for good, whatever the policy does."""
    failures_are_zeros: bool = False
    """Whether a rollout that the infrastructure ended is trained, with reward 0."""
    in_flight: int = 1
    """Batches that are sampled ahead: with 1, each one is sampled with the weights that it trains."""
    max_staleness: int | None = 1


_FAULT = 0.15
_AHEAD = 8
_SLOW = 0.1

ARMS = {
    arm.name: arm
    for arm in (
        Arm("exact", "the pool's mask"),
        Arm("lengths", "length difference", mask=Mask.LENGTHS),
        Arm("lengths-recomputed", "length difference, log-probs recomputed", mask=Mask.LENGTHS_RECOMPUTED),
        Arm("lengths-undrifted", "length difference, no drift", mask=Mask.LENGTHS, drifts=False),
        Arm("shifted", "shifted by one token", mask=Mask.SHIFTED),
        Arm("concatenated", "sampled ids kept and joined", mask=Mask.CONCATENATED),
        Arm("ones", "all ones", mask=Mask.ONES),
        Arm("exact-slow", "the pool's mask, a tenth of the rate", rate=_SLOW),
        Arm("lengths-slow", "length difference, a tenth of the rate", mask=Mask.LENGTHS, rate=_SLOW),
        Arm("faults-left-out", "faults, left out", fault=_FAULT),
        Arm("faults-zero", "faults, reward 0", fault=_FAULT, failures_are_zeros=True),
        Arm("stale", f"{_AHEAD} batches ahead, no limit", in_flight=_AHEAD, max_staleness=None),
        Arm("stale-limit", f"{_AHEAD} batches ahead, max_staleness 2", in_flight=_AHEAD, max_staleness=2),
    )
}
"""By name, in the order of the page."""
