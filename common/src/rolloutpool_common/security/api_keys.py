"""API keys. A key is shown once, when it is made; the API knows only its hash.

1. `make_key` makes a key and its entry, `name:scopes:sha256`, e.g. `job7:submit+read:9f86…`.
2. The operator gives the entry to the API (ROLLOUTPOOL_API_KEYS) and the key to a caller.
3. `find_key` finds the entry of a key that a request brings. The name owns the data: two keys of one name see the
   same batches, so a key is replaced by adding a second one and removing the first later.

A key holds 256 random bits, so a plain hash is safe: nobody can guess keys and compare hashes.
"""

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

__all__ = ["GUEST", "ApiKey", "KeyScope", "find_key", "make_key", "parse_keys"]

GUEST = "public"
"""Owner of the data that comes without a key; no key may have this name."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_DIGEST = re.compile(r"[0-9a-fA-F]{64}")


class KeyScope(StrEnum):
    """What a key may do."""

    SUBMIT = "submit"
    """Submit batches and rollouts, and cancel them."""
    READ = "read"
    """Read states and results."""
    ADMIN = "admin"
    """Everything, with the data of all keys; also see workers, and delete data."""


@dataclass(frozen=True)
class ApiKey:
    """One key as the API knows it."""

    name: str
    scopes: frozenset[KeyScope]
    digest: bytes = field(repr=False)
    """SHA-256 of the key."""

    def entry(self) -> str:
        """Write the entry for ROLLOUTPOOL_API_KEYS."""
        return f"{self.name}:{'+'.join(sorted(self.scopes))}:{self.digest.hex()}"


def make_key(name: str, scopes: Iterable[KeyScope]) -> tuple[str, ApiKey]:
    """Make a new key.

    Args:
        name: Owner of the data that comes with the key.
        scopes: What the key may do.

    Returns:
        The key, which only its holder may know, and what the API knows of it.

    Raises:
        ValueError: An entry can't have this name.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name[:80]!r}: a name is made of letters, digits, `.`, `_` and `-`, at most 64")
    key = f"rpk_{secrets.token_urlsafe(32)}"
    made = ApiKey(name, frozenset(scopes), _digest(key))
    _parse(made.entry())
    return key, made


def parse_keys(text: str) -> tuple[ApiKey, ...]:
    """Read entries.

    Args:
        text: Entries separated by white space or commas; `#` begins a comment, which ends with its line.

    Raises:
        ValueError: An entry can't be read; the message names it, but not its hash.
    """
    lines = (line.partition("#")[0] for line in text.splitlines())
    return tuple(_parse(entry) for line in lines for entry in line.replace(",", " ").split())


def find_key(keys: Iterable[ApiKey], key: str) -> ApiKey | None:
    """Find the entry of a key. Takes the same time for every wrong key.

    Args:
        keys: All entries.
        key: What a request brought.

    Returns:
        The entry, or None if no entry fits.
    """
    digest = _digest(key)
    found = None
    # To the end even after a hit, so that the time does not tell where an entry stands.
    for known in keys:
        if hmac.compare_digest(known.digest, digest):
            found = known
    return found


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def _parse(entry: str) -> ApiKey:
    # The message does not repeat the entry: someone who gave the key instead would find it in a log.
    name, _, rest = entry.partition(":")
    scopes, _, digest = rest.partition(":")
    if not _NAME.fullmatch(name) or not rest:
        raise ValueError("an entry must be name:scopes:sha256, as `rolloutpool make-key NAME` prints it")
    if name == GUEST:
        raise ValueError(f"no key may be named {GUEST!r}: that is whose rollouts are that come without a key")
    try:
        allowed = frozenset(KeyScope(scope) for scope in scopes.split("+"))
    except ValueError:
        raise ValueError(f"key {name!r}: its scopes must be some of {'+'.join(KeyScope)}") from None
    if not _DIGEST.fullmatch(digest):
        raise ValueError(f"key {name!r}: the last part must be the SHA-256 of the key, 64 hexadecimal digits")
    return ApiKey(name, allowed, bytes.fromhex(digest))
