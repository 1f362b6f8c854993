"""Holds what a result carries so that its rollout can be run again without a model, or go on from one of its turns.

A `ReplayRecord` has the rollout's journal, compressed against the result (`kept_journal.py`), and what is in neither:

- the options that it ran with, without endpoint and key: both are given anew;
- what its worker knew without being told in a record: which tools a prompt may show, and how its environment acts.

`replay_record: false` leaves it out.
"""

import hashlib
import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field


def _is_empty(value: object) -> bool:
    return not value


class ReplayRecord(BaseModel):
    """Holds what a replay or a fork needs of a rollout and its result has nowhere else. Empty fields are left out."""

    # What release 0.2 has written stays as it is where this one passes it on; only that release can use it.
    model_config = ConfigDict(extra="allow")

    options: dict[str, Any]
    """The fields of its `RolloutSpec` that differ from their defaults; no endpoint, no key, no messages."""
    given: int
    """How many messages the trainer submitted; the transcript begins with them."""
    tools_digest: str = ""
    """blake2b-128 (hex) of the definitions of the tools that a prompt may show."""
    tools: list[dict[str, Any]] = Field(default_factory=list, exclude_if=_is_empty)
    """Definitions of the environment's own tools, which no worker has without a session; none if they are long."""
    by_text: bool = Field(default=False, exclude_if=_is_empty)
    """Whether each message of the policy was an action in its environment."""
    journal: str | None = Field(default=None, exclude_if=_is_empty)
    """The rollout's journal, as `kept_journal.py` writes it; null in results of release 0.2."""


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
    """Holds what the replay of one rollout has shown."""

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


def definitions_digest(definitions: Sequence[Mapping[str, Any]]) -> str:
    """Returns the digest by which a list of tools' definitions is known again: blake2b-128, hex."""
    # Not at the top: a trainer's client reads results, writes none, and need not install it.
    import orjson

    return hashlib.blake2b(orjson.dumps(list(definitions), option=orjson.OPT_SORT_KEYS), digest_size=16).hexdigest()


def __getattr__(name: str) -> Any:
    # It has moved; its name can be imported from here for a release.
    if name == "ForkOrigin":
        return importlib.import_module("rolloutpool_common.capabilities.forks.origin").ForkOrigin
    raise AttributeError(name)
