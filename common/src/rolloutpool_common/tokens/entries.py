"""The ledger's journal: one entry per change. A ledger's state is what its entries make of an empty one.

An entry is small JSON; ids and log-probabilities are packed (`arrays.py`). `after` is the digest of the context after
the entry. A replay compares it, so an entry that is lost, repeated or altered is noticed at once.

Nobody changes an entry. They are not frozen all the same, because a frozen one takes twice as long to make, and each
turn makes two or three. They have no slots, because orjson writes such a one five times more slowly.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, with_config

from rolloutpool_common.tokens.segments import SegmentKind


class TokenizerFingerprint(BaseModel):
    """Holds what decides which ids a text becomes. Two sides that differ in it may not share a ledger."""

    model_config = ConfigDict(frozen=True)

    tokenizer_sha256: str
    """Of the tokenizer's file."""
    template_sha256: str
    """Of the chat template's text."""
    transformers_version: str
    """Of the library that renders; another patch of it may render another text."""


@dataclass(kw_only=True)
class _Entry:
    ids: str
    """The new ids, packed uint32."""
    after: str
    """Hex of the blake2b-128 of the context's ids after this entry."""


@with_config(ConfigDict(extra="forbid"))
@dataclass(kw_only=True)
class SeedEntry(_Entry):
    """The first prompt."""

    op: Literal["seed"] = "seed"
    fingerprint: TokenizerFingerprint | None = None
    """What rendered it; a journal can only be resumed under the same one."""


@with_config(ConfigDict(extra="forbid"))
@dataclass(kw_only=True)
class SampledEntry(_Entry):
    """Holds what the policy sampled in one go, verbatim."""

    op: Literal["sampled"] = "sampled"
    logprobs: str
    """One per id, packed float64."""
    turn: int
    """The model call, from 1."""
    policy_version: str | None = None
    """The trainer's name for the weights that sampled it."""
    train: bool = True
    """Whether its mask is 1."""


@with_config(ConfigDict(extra="forbid"))
@dataclass(kw_only=True)
class TextEntry(_Entry):
    """Ids that the policy did not sample, appended to the context."""

    op: Literal["text"] = "text"
    kind: Literal[SegmentKind.GLUE, SegmentKind.SYNTH_CLOSE]
    turn: int
    """The model call that it follows."""


@with_config(ConfigDict(extra="forbid"))
@dataclass(kw_only=True)
class TailEntry(_Entry):
    """Everything from position `keep` on becomes `ids`; nothing sampled lies there."""

    op: Literal["tail"] = "tail"
    keep: int


@with_config(ConfigDict(extra="forbid"))
@dataclass(kw_only=True)
class ForkEntry(_Entry):
    """The current sample is closed; the next one's prompt is the context's first `keep` ids, then `ids`."""

    op: Literal["fork"] = "fork"
    keep: int


Entry = Annotated[SeedEntry | SampledEntry | TextEntry | TailEntry | ForkEntry, Field(discriminator="op")]
"""Any of them, told apart by `op`; `protocol/journal.py` has them in its records and reads them."""
