"""How a trainer's port behaves, and so how its rollouts have to end."""

from enum import StrEnum

__all__ = ["MUST_COMPLETE", "MUST_FAIL", "Manner"]


class Manner(StrEnum):
    """One kind of port."""

    STEADY = "steady"
    """Honest; remembers its sessions over kill -9."""
    SLOW = "slow"
    """Takes three times as long."""
    BUSY = "busy"
    """Answers 429 now and then, with Retry-After."""
    FLAKY = "flaky"
    """Samples, keeps the turn, and then answers 503 or cuts the connection in the middle of the reply."""
    RERENDER = "rerender"
    """Renders the whole history again each turn, so that its prompt differs from what was sampled."""
    FORGETFUL = "forgetful"
    """Says that it is idempotent, and forgets its sessions when it is killed; rollouts that need one fail, typed, or
    complete."""
    SHORT = "short"
    """Returns one log-probability too few."""
    ALIEN = "alien"
    """Returns an id that no tokenizer of this size has."""
    DEAF = "deaf"
    """Answers 500 to everything."""


MUST_COMPLETE = frozenset({Manner.STEADY, Manner.SLOW, Manner.BUSY, Manner.FLAKY, Manner.RERENDER})
MUST_FAIL = frozenset({Manner.SHORT, Manner.ALIEN, Manner.DEAF})
