"""Checks of fields that several requests share: URLs, ids, labels and secrets, and the texts that refuse them."""

import unicodedata
from typing import Annotated

from pydantic import AfterValidator

LONGEST_ID = 256


def check_rollout_id(value: str) -> str:
    """Check a caller's own name for a rollout."""
    if not value.strip():
        raise ValueError("rollout_id must be non-empty")
    if len(value) > LONGEST_ID:
        raise ValueError(f"rollout_id must be at most {LONGEST_ID} characters")
    return value


def check_server_url(value: str) -> str:
    """Check the base URL of a trainer's callback."""
    if not value.startswith(("http://", "https://")):
        raise ValueError(f"server_url must be an HTTP/HTTPS URL, got: {value}")
    return value.rstrip("/")


def check_callback_host(value: str) -> str:
    """Check a base URL like `check_server_url`; it must also name a host, which protocol v1 does not demand."""
    url = check_server_url(value)
    if not url.partition("://")[2].split("/", 1)[0]:
        raise ValueError(f"server_url names no host: {value}")
    return url


RolloutName = Annotated[str, AfterValidator(check_rollout_id)]
CallbackUrl = Annotated[str, AfterValidator(check_callback_host)]


def check_label(value: str) -> str:
    """Check a label, or its name: a line of text, which a list or a log can show as it is."""
    for at, character in enumerate(value):
        if unicodedata.category(character) in ("Cc", "Zl", "Zp"):
            raise ValueError(f"must not hold control characters: there is U+{ord(character):04X} at {at}")
    return value


def check_header_value(value: str) -> str:
    """Check a secret that is sent in a header of HTTP."""
    for at, character in enumerate(value):
        if not " " <= character <= "~":
            raise ValueError(
                f"must hold printable ASCII characters only, because it is sent in a header; see place {at}"
            )
    return value
