"""What a result carries so that its rollout can be run again without a model, or go on from one of its turns.

Most of a rollout is in its result anyway: the messages, and for each turn what was sampled after which prompt. A
`ReplayRecord` adds the rest:

- the options that it ran with, without endpoint and key: both are given anew;
- where the agent's part of the transcript begins, and what an edit has taken out of it;
- what the environment said besides texts, and its snapshots while they are small;
- digests of the turns as the worker had them, so that a result that was changed since is noticed.

It takes some hundred bytes; an edited history and an environment take more. `replay_record: false` leaves it out.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from rolloutpool_common.protocol.environments import CrashEffect
from rolloutpool_common.protocol.messages import Message

__all__ = [
    "ForkOrigin",
    "RecordedEdit",
    "RecordedStep",
    "ReplayDifference",
    "ReplayRecord",
    "ReplayReport",
    "definitions_digest",
    "turn_digest",
]

_TURN_BYTES = 8
"""Of a turn's digest: enough to notice a change, and short, because a rollout may have 100 turns."""


def _is_empty(value: object) -> bool:
    return not value


class ForkOrigin(BaseModel):
    """Where a fork began."""

    model_config = ConfigDict(frozen=True)

    uid: str
    """The rollout that it was forked from, its parent."""
    turn: int = Field(ge=1)
    """The first turn that the fork has sampled itself; those before it are the parent's."""
    train_trunk: bool = False
    """Whether the parent's turns are trained in the fork too. They have mask 1 in the parent's samples already."""


class RecordedEdit(BaseModel):
    """An edit of the history."""

    turn: int
    """The last turn that was sampled before it."""
    before: list[Message]
    """The whole transcript before it."""
    kept: int
    """How many messages the history had after it."""


class RecordedStep(BaseModel):
    """What an environment said to one call or message, besides the text."""

    turn: int
    place: int
    """Which of the turn's calls it answers, from 0."""
    reward: float | None = None
    done: bool = False


class ReplayRecord(BaseModel):
    """What a replay or a fork needs of a rollout and its result has nowhere else. Empty fields are left out."""

    options: dict[str, Any]
    """The fields of its `RolloutSpec` that differ from their defaults; no endpoint, no key, no messages."""
    given: int
    """How many messages the trainer submitted; the transcript begins with them."""
    opened: int = Field(default=0, exclude_if=_is_empty)
    """How many messages follow those that its environment's session began with."""
    tools_digest: str = ""
    """blake2b-128 (hex) of the definitions of the tools that a prompt may show."""
    tools: list[dict[str, Any]] = Field(default_factory=list, exclude_if=_is_empty)
    """Definitions of the environment's own tools, which no worker has without a session; none if they are long."""
    crash: CrashEffect | None = Field(default=None, exclude_if=_is_empty)
    """What the environment declared about the end of a worker."""
    by_text: bool = Field(default=False, exclude_if=_is_empty)
    """Whether each message of the policy was an action in its environment."""
    turns: list[str] = Field(default_factory=list)
    """A digest for each turn, see `turn_digest`."""
    samples: list[str] = Field(default_factory=list)
    """blake2b-128 (hex) of each sample's ids, prompt and response."""
    edits: list[RecordedEdit] = Field(default_factory=list, exclude_if=_is_empty)
    steps: list[RecordedStep] = Field(default_factory=list, exclude_if=_is_empty)
    snapshots: dict[int, str] = Field(default_factory=dict, exclude_if=_is_empty)
    """The environment's session after a turn, in base64. The oldest are left out where all would be too long."""


class ReplayDifference(BaseModel):
    """One thing that a replay has found to be other than the result says."""

    what: str
    """`prompt_ids`, `response_mask`, `tool_calls` …"""
    recorded: str
    """As the result has it, cut to a few words."""
    replayed: str
    """As it came out."""
    turn: int | None = None
    sample: int | None = None
    """From 0."""
    position: int | None = None
    """Of the first value that differs, in the list that `what` names."""


class ReplayReport(BaseModel):
    """What the replay of one rollout has shown."""

    uid: str
    same: bool
    """Whether everything that could be compared is the same."""
    turns: int = 0
    """Turns that were run again."""
    ids: int = 0
    """Ids that were compared."""
    lacks: str | None = None
    """Why nothing could be run again; null where something was."""
    notes: list[str] = Field(default_factory=list)
    """What could not be compared, or may explain a difference."""
    differences: list[ReplayDifference] = Field(default_factory=list)
    """The first ones, in the order of the rollout."""


def turn_digest(message: Mapping[str, Any], parts: Sequence[tuple[str, str]]) -> str:
    """Returns the digest of what the policy did in one turn.

    Args:
        message: In normal form.
        parts: Of each run of sampled ids: the packed ids, and the packed log-probabilities (`tokens/arrays.py`). They
            are left out ("") where the turn is not trained, because a result has none then.

    Returns:
        blake2b-64, hex.
    """
    # Not at the top: a trainer's client reads results, writes none, and need not install it.
    import orjson

    running = hashlib.blake2b(orjson.dumps(message), digest_size=_TURN_BYTES)
    for ids, logprobs in parts:
        running.update(f"|{ids}|{logprobs}".encode())
    return running.hexdigest()


def definitions_digest(definitions: Sequence[Mapping[str, Any]]) -> str:
    """Returns the digest by which a list of tools' definitions is known again: blake2b-128, hex."""
    import orjson

    return hashlib.blake2b(orjson.dumps(list(definitions), option=orjson.OPT_SORT_KEYS), digest_size=16).hexdigest()
