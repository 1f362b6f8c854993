"""Checks of fields that several requests share: URLs, ids, labels and secrets, and the texts that refuse them."""

import unicodedata

__all__ = ["check_callback_host", "check_header_value", "check_label", "check_rollout_id", "check_server_url"]

LONGEST_ID = 256


def check_rollout_id(value: str) -> str:
    """Check a caller's own name for a rollout.

    Returns:
        The id unchanged.

    Raises:
        ValueError: It is blank, or longer than 256 characters.
    """
    if not value.strip():
        raise ValueError("rollout_id must be non-empty")
    if len(value) > LONGEST_ID:
        raise ValueError(f"rollout_id must be at most {LONGEST_ID} characters")
    return value


def check_server_url(value: str) -> str:
    """Check the base URL of a trainer's callback.

    Returns:
        The URL without trailing slashes.

    Raises:
        ValueError: It is neither http nor https.
    """
    if not value.startswith(("http://", "https://")):
        raise ValueError(f"server_url must be an HTTP/HTTPS URL, got: {value}")
    return value.rstrip("/")


def check_callback_host(value: str) -> str:
    """Check a base URL like `check_server_url`; it must also name a host, which protocol v1 does not demand.

    Returns:
        The URL without trailing slashes.

    Raises:
        ValueError: It is neither http nor https, or names no host.
    """
    url = check_server_url(value)
    if not url.partition("://")[2].split("/", 1)[0]:
        raise ValueError(f"server_url names no host: {value}")
    return url


def check_label(value: str) -> str:
    """Check a label, or its name: a line of text, which a list or a log can show as it is.

    Returns:
        The text unchanged.

    Raises:
        ValueError: It has a newline or another control character.
    """
    for at, character in enumerate(value):
        if unicodedata.category(character) in ("Cc", "Zl", "Zp"):
            raise ValueError(f"must not hold control characters: there is U+{ord(character):04X} at {at}")
    return value


def check_header_value(value: str) -> str:
    """Check a secret that is sent in a header of HTTP.

    Returns:
        The secret unchanged.

    Raises:
        ValueError: It has a character that can't stand there; the message does not show it.
    """
    for at, character in enumerate(value):
        if not " " <= character <= "~":
            raise ValueError(
                f"must hold printable ASCII characters only, because it is sent in a header; see place {at}"
            )
    return value
