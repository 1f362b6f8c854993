"""Pushed results: a POST per finished rollout, signed by the rules of Standard Webhooks.

1. `webhook-id` is the rollout's uid. It stays the same over retries, so a receiver can drop what it already has.
2. `webhook-timestamp` is the time of this attempt in Unix seconds. A push older than 5 minutes is refused.
3. `webhook-signature` is `v1,` and the base64 of HMAC-SHA256(secret, "{id}.{timestamp}.{body}"). It may hold several
   signatures, separated by spaces; one that fits is enough.
"""

import base64
import binascii
import hashlib
import hmac
from datetime import datetime
from typing import Literal

from pydantic import BaseModel

from rolloutpool_common.errors import RolloutPoolError
from rolloutpool_common.protocol.result import RolloutResult

HEADER_ID = "webhook-id"
HEADER_TIMESTAMP = "webhook-timestamp"
HEADER_SIGNATURE = "webhook-signature"

TOLERANCE_SECONDS = 300


class PushEvent(BaseModel):
    """The body of a push."""

    type: Literal["rollout.finished"] = "rollout.finished"
    timestamp: datetime
    data: RolloutResult


class SignatureInvalid(RolloutPoolError):
    """The push was not signed with this secret, or is too old; don't trust its body."""


def _key(secret: str) -> bytes:
    if secret.startswith("whsec_"):
        try:
            return base64.b64decode(secret.removeprefix("whsec_"), validate=True)
        except binascii.Error:
            return secret.encode()
    return secret.encode()


def sign(secret: str, message_id: str, timestamp: int, body: bytes) -> str:
    """Make the value of `webhook-signature`."""
    signed = b".".join((message_id.encode(), str(timestamp).encode(), body))
    return "v1," + base64.b64encode(hmac.digest(_key(secret), signed, hashlib.sha256)).decode()


def verify(secret: str, message_id: str, timestamp: str, body: bytes, signatures: str, *, now: float) -> None:
    """Check that a push was signed with this secret, not more than 5 minutes ago."""
    # A number of thousands of digits would make int() raise; a time has 16 at most.
    if not timestamp.isdecimal() or len(timestamp) > 16 or abs(now - int(timestamp)) > TOLERANCE_SECONDS:
        raise SignatureInvalid(f"push {message_id[:64]!r}: its timestamp is more than {TOLERANCE_SECONDS} s away")
    expected = sign(secret, message_id, int(timestamp), body)
    if not any(hmac.compare_digest(expected.encode(), given.encode()) for given in signatures.split()):
        raise SignatureInvalid(f"push {message_id[:64]!r}: no signature fits the body and this secret")
