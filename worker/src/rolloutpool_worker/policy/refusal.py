"""What a trainer says in the body of an error status: the `message` of its JSON, in one short line, and nothing else.

Bodies of errors may be anything (a gateway's page, a traceback, the request itself with its prompts), so no other part
of them goes into errors, logs and results.

The message itself is shown only where the answer is a policy server's. A caller names the address that is called, so
the answer may be one of any service in the pool's network, and the caller must not get to read what that says. It is
taken for a policy server's if it repeats the request's name (`X-Turn-Key`), or if its error has one of the types that
engines and OpenAI's API use. Of all others the status is shown alone.
"""

from dataclasses import dataclass

import orjson

MOST_BYTES = 8_192
"""Of an error's body; of a longer one nothing is read."""
READ_SECONDS = 2.0
"""A body that trickles must not hold up the next try."""
LONGEST = 200
"""Characters."""
_TYPES = frozenset(
    {
        # vLLM and SGLang.
        *("BadRequestError", "NotFoundError", "UnprocessableEntityError", "NotImplementedError", "InternalServerError"),
        *("ServiceUnavailableError", "AuthenticationError", "PermissionDeniedError", "RateLimitError", "ConflictError"),
        *("EngineDeadError", "GenerationError"),
        # OpenAI.
        *("invalid_request_error", "not_found_error", "authentication_error", "permission_error", "rate_limit_error"),
        *("server_error", "insufficient_quota", "tokens", "requests"),
    }
)
"""Of errors: `{"error": {"type": …}}`, or vLLM's older `{"object": "error", "type": …}`."""


@dataclass(frozen=True)
class Said:
    """Holds what an error's body says."""

    message: str = ""
    """Empty where it says nothing."""
    of_policy: bool = False
    """Whether the body has the form of a policy server's error."""
    error_type: str = ""
    """Empty where the error has none."""


def message_of(data: bytes, *, detail: bool = False) -> Said:
    """Finds the message in a body: `{"message": …}`, `{"error": {"message": …}}` or `{"error": "…"}`."""
    try:
        document = orjson.loads(data)
    except (orjson.JSONDecodeError, RecursionError):
        return Said()
    error = document.get("error") if isinstance(document, dict) else None
    inner = error.get("message") if isinstance(error, dict) else error
    found = (
        document.get("message", inner or (document.get("detail") if detail else None))
        if isinstance(document, dict)
        else None
    )
    if not isinstance(found, str):
        return Said()
    kind = error.get("type") if isinstance(error, dict) else document.get("type")
    line = "".join(c if c.isprintable() else "?" for c in " ".join(found.split()))
    kind = kind if isinstance(kind, str) else ""
    return Said(line if len(line) <= LONGEST else line[: LONGEST - 1] + "…", kind in _TYPES, kind)
