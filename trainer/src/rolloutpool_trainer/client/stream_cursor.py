"""Says where a `RolloutStream` stands, as text that a trainer saves with its checkpoint.

It names the batches that are in flight, and of each the groups that were yielded. With it, another process goes on: it
reads those batches again, skips what was yielded, and submits what comes after. If the process ended between a submit
and the next save, the batch is submitted again under the same idempotency key, so the pool answers with the one that
runs.
"""

import json
import secrets
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(slots=True)
class OpenBatch:
    """A batch in flight."""

    position: int
    """Which of the stream's batches it is, from 0."""
    batch_id: str
    yielded: list[str] = field(default_factory=list)
    """Groups that the trainer has had, or that were left out."""
    submits: int = 1
    """How often it was submitted: once more whenever the pool had lost it."""


@dataclass(slots=True)
class StreamCursor:
    """The state of a stream."""

    name: str = field(default_factory=lambda: secrets.token_hex(8))
    """Part of the idempotency keys, so that two streams never share a batch."""
    taken: int = 0
    """How many batches were taken from the prompts."""
    open: list[OpenBatch] = field(default_factory=list)
    """In the order of the prompts."""

    @classmethod
    def read(cls, text: str | None) -> "StreamCursor":
        """Reads what `write` wrote; None begins a new stream.

        Raises:
            ValueError: The text is not a stream's cursor.
        """
        if text is None:
            return cls()
        try:
            document: dict[str, Any] = json.loads(text)
            batches = [OpenBatch(**entry) for entry in document.pop("open")]
            cursor = cls(**document, open=batches)
            # The types are checked too: a cursor of something else must not begin a run at a wrong place.
            sound = {name: type(document[name]) for name in ("name", "taken")} == {"name": str, "taken": int}
        except (TypeError, ValueError, KeyError, AttributeError):
            sound = False
        if not sound:
            raise ValueError("this is not the cursor of a RolloutStream")
        return cursor

    def write(self) -> str:
        """Writes the state as JSON."""
        return json.dumps(asdict(self), separators=(",", ":"))

    def key(self, position: int, submits: int) -> str:
        """Makes the idempotency key of a batch."""
        return f"stream/{self.name}/{position}/{submits}"
