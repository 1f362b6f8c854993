"""How the endpoint refuses a call: an HTTP status with a JSON body `{"error": {...}}`.

The body says what happened and what to change. It holds ids, counts and positions, never text of a conversation,
because errors end up in logs. The one text of others is that of a policy's error (`policy_failed`).
"""

from typing import Any

import orjson

from rolloutpool_common.rendering.quotes import without_quotes
from rolloutpool_trainer.endpoint.policy import GenerateParams

__all__ = ["EndpointError", "policy_failed"]

LONGEST_READ = 2000
"""Characters of an error's text in which quotes are looked for."""
LONGEST_TEXT = 200
"""Characters of it in an answer."""


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


def policy_failed(error: Exception, params: GenerateParams, sampled: str) -> EndpointError:
    """Makes the answer to a turn whose policy has raised an error: its type and its text, as a grader's failure has.

    The text is written by somebody's code and may quote anything. So what it quotes of the messages, or of what was
    sampled, becomes `…`, and 200 characters of the rest are sent. A secret in it can't be known from other text: a
    policy must not put one into its errors.
    """
    said = without_quotes(str(error)[:LONGEST_READ], [*params.messages, {"content": sampled}], "")
    # Half of a surrogate pair is a string to Python, but it cannot be written as UTF-8.
    line = " ".join(said.encode(errors="backslashreplace").decode().split())
    text = line if len(line) <= LONGEST_TEXT else f"{line[:LONGEST_TEXT]}…"
    return EndpointError(
        500,
        "generate_failed",
        f"the policy failed with {type(error).__name__}{text and f': {text}'}; see the trainer's log. "
        "Asking again is safe",
        rollout_id=params.rollout_id,
        turn=params.turn,
    )
