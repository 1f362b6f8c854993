"""How the endpoint refuses a call: an HTTP status with a JSON body `{"error": {...}}`.

The body says what happened and what to change. It holds ids, counts and positions, never text of a conversation,
because errors end up in logs. The one text of others is that of a policy's error (`policy_failures`).
"""

from typing import Any

import orjson


class EndpointError(Exception):
    """The request gets an error status instead of a turn."""

    def __init__(self, status: int, kind: str, message: str, **details: Any) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        """Tells a program which refusal this is."""
        self.message = message
        self.details = details

    def body(self) -> bytes:
        """The answer's JSON."""
        return orjson.dumps({"error": {"type": self.kind, "message": self.message, **self.details}})
