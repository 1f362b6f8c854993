"""How a trainer's port behaves, and so how its rollouts have to end."""

from enum import StrEnum


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
    """Says that it is idempotent, and forgets its sessions when it is killed; they are restored from the pool's ids, or
    their rollouts fail, typed."""
    SHORT = "short"
    """Returns one log-probability too few."""
    ALIEN = "alien"
    """Returns an id that no tokenizer of this size has."""
    DEAF = "deaf"
    """Answers 500 to everything."""
    TRICKLE = "trickle"
    """Honest, but its replies come byte by byte."""
    HUGE = "huge"
    """Replies with 100 MB."""
    BOMB = "bomb"
    """Replies with 1 MB of gzip that is 1 GB when it is unpacked."""
    ONCE = "once"
    """Honest, and does not promise that a turn may be asked again: a rollout whose call was in flight when its worker
    or a connection ended fails, because the turn is in doubt."""
    VLLM = "vllm"
    """No callback but an imitated vLLM, which is asked with ids. Its weights are updated every few seconds."""
    SGLANG = "sglang"
    """The same of SGLang."""


ENGINES = frozenset({Manner.VLLM, Manner.SGLANG})
MUST_COMPLETE = ENGINES | {Manner.STEADY, Manner.SLOW, Manner.BUSY, Manner.FLAKY, Manner.RERENDER, Manner.TRICKLE}
HONEST = MUST_COMPLETE | {Manner.ONCE}
MUST_FAIL = frozenset({Manner.SHORT, Manner.ALIEN, Manner.DEAF, Manner.HUGE, Manner.BOMB})
