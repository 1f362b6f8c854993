"""Says how a call of a program is stored, read and told, and how its reply is noted."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson


@dataclass(frozen=True)
class ModelCall:
    """What a program asks the policy, in chat form."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]]
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """Sampling parameters of its own, in the place of the rollout's."""
    after: int | None = None
    """The reply that it follows, where the program has named it."""
    counts: bool = False
    """Whether it asks only how many tokens its prompt has."""
    sent: Mapping[str, Any] = field(default_factory=dict)
    """How it was asked besides that, for people: `dialect` and `fields`. It is no part of what makes calls equal."""


@dataclass(frozen=True)
class StoredCall:
    """A call as its worker reads it."""

    n: int
    """From 1, in the order of arrival."""
    replied: int
    """How many replies there were when it came."""
    messages: Sequence[dict[str, Any]]
    digests: Sequence[str]
    """Of the messages."""
    tools: Sequence[dict[str, Any]]
    tools_digest: str
    reply: tuple[int, dict[str, Any]] | None
    """Its place among the replies, and the reply; None while there is none."""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    after: int | None = None
    counts: bool = False
    sent: Mapping[str, Any] = field(default_factory=dict)
    record: bytes = b""
    """All this but replies, as it is stored."""


class HeardCall(NamedTuple):
    """A call whose last byte its program has."""

    n: int
    holder: str
    """The connection that gave it, as `Arrival` names it."""


def stored_call(
    n: int, raw: bytes, known: Mapping[str, Any], reply: tuple[int, dict[str, Any]] | None
) -> StoredCall | None:
    """Reads a call as it was stored; None where something of it is not known."""
    replied, _, text = raw.split(b" ", 2)
    record = orjson.loads(text)
    if not all(digest in known for digest in (*record["said"], record["tools"], record["sent"])):
        return None
    return StoredCall(
        n=n,
        replied=int(replied),
        messages=[known[digest] for digest in record["said"]],
        digests=record["said"],
        tools=known[record["tools"]],
        tools_digest=record["tools"],
        reply=reply,
        sampling=record.get("sampling") or {},
        after=record.get("after"),
        counts="counts" in record,
        sent=known[record["sent"]],
        record=text,
    )


def told_calls(news: Sequence[bytes], seen: int, known: dict[str, Any]) -> list[StoredCall] | None:
    """Returns the calls behind the first `seen` that a worker was told of; None where it has to read them.

    News may be lost, late, or told twice, so they count only where they follow each other without a gap.
    """
    calls: list[StoredCall] = []
    for one in news:
        number, record, *said = one.split(b"\n")
        if int(number) <= seen + len(calls):
            continue
        words = iter(said if said != [b""] else ())
        known.update((digest.decode(), orjson.loads(text)) for digest, text in zip(words, words, strict=True))
        call = stored_call(int(number), record, known, None)
        if call is None or call.n > seen + len(calls) + 1:
            return None
        calls.append(call)
    return calls


def note_of(n: int, reply: Mapping[str, Any]) -> bytes:
    """Notes the reply to a call with its turn: both are durable, or neither is (`harness_on_record`)."""
    return b"harness %d " % n + orjson.dumps(reply)
