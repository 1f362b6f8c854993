"""Trace: the ids by which logs, spans and the trainer's own traces name one rollout.

They follow from the rollout's uid, so every process makes the same ones, and no process needs to tell another:

- One rollout is one trace, over all of its attempts. `trace_id_of` is its id.
- Each of its spans has an id made of what it is about: `span_id_of(uid, "turn", 2, 3)` is turn 3 of
  attempt 2.
- `traceparent` writes both as W3C's header, which a trainer's own tracing continues.

Example: `traceparent("b1-0", span_id_of("b1-0", "turn", 1, 1))` → `00-<32 hex digits>-<16 hex digits>-01`.
"""

import hashlib

HEADER_TRACEPARENT = "traceparent"


def trace_id_of(uid: str) -> str:
    """Returns the trace id of a rollout: 32 hex digits, never all 0."""
    return _digest(uid, 16)


def span_id_of(uid: str, *about: str | int) -> str:
    """Returns the id of a span in the rollout's trace: 16 hex digits, never all 0."""
    return _digest("\n".join([uid, "span", *map(str, about)]), 8)


def traceparent(uid: str, span_id: str) -> str:
    """Writes the header of a request that a span makes; its last field says that the trace is kept."""
    return f"00-{trace_id_of(uid)}-{span_id}-01"


def _digest(text: str, size: int) -> str:
    # All 0 is no id, and chance makes it once in 2^64.
    return hashlib.blake2b(text.encode(), digest_size=size).hexdigest()
