"""For receivers of pushed results: `verify_push` checks that a push is from the pool. Do not read a push before."""

import time
from collections.abc import Mapping

from rolloutpool_common.capabilities.webhooks import push
from rolloutpool_common.capabilities.webhooks.push import PushEvent, SignatureInvalid

__all__ = ["SignatureInvalid", "verify_push"]


def verify_push(secret: str, headers: Mapping[str, str], body: bytes) -> PushEvent:
    """Checks the signature of a pushed request and returns its event.

    Args:
        secret: The `delivery.secret` that the batch was submitted with.
        headers: Of the request; names in any case.
        body: Of the request, byte by byte as it came. A push may come twice: drop by `event.data.uid`.

    Raises:
        SignatureInvalid: The push was not signed with this secret, or more than five minutes ago.
    """
    lower = {name.lower(): value for name, value in headers.items()}
    push.verify(
        secret,
        lower.get(push.HEADER_ID, ""),
        lower.get(push.HEADER_TIMESTAMP, ""),
        body,
        lower.get(push.HEADER_SIGNATURE, ""),
        now=time.time(),
    )
    return PushEvent.model_validate_json(body)
