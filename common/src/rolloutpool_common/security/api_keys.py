"""API keys. A key is shown once, when it is made; the API knows only its hash.

1. `make_key` makes a key and its entry, `name:scopes:sha256`, e.g. `job7:submit+read:9f86…`.
2. An entry may go on with options, each after a semicolon: a quota (`open`, `bytes`, `weight`), and the time at which
   the key expires. Example: `job7:submit+read:9f86…;open=5000;bytes=2gb;expires=2026-12-01T00:00:00Z`.
3. The operator gives the entry to the API (ROLLOUTPOOL_API_KEYS) and the key to a caller.
4. `find_key` finds the entry of a key that a request brings. The name owns the data: two keys of one name see the
   same batches, so a key is replaced by adding a second one and removing the first later.

A key holds 256 random bits, so a plain hash is safe: nobody can guess keys and compare hashes.
"""

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum

GUEST = "public"
"""Owner of the data that comes without a key; no key may have this name."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_DIGEST = re.compile(r"[0-9a-fA-F]{64}")
_SIZE = re.compile(r"([0-9]{1,15})(kb|mb|gb)?", re.IGNORECASE)
_UNITS = {"kb": 1024, "mb": 1024**2, "gb": 1024**3}


class KeyScope(StrEnum):
    """Says what a key may do."""

    SUBMIT = "submit"
    """Submit batches and rollouts, and cancel them."""
    READ = "read"
    """Read states and results."""
    METRICS = "metrics"
    """Scrape `/metrics`, which shows the endpoints and the counts of all keys."""
    ADMIN = "admin"
    """Everything, with the data of all keys; also see workers, and delete data."""


@dataclass(frozen=True)
class KeyQuota:
    """How much of the pool one name may hold at a time; None is no limit but the pool's own."""

    open: int | None = None
    """Rollouts that are accepted and have not ended."""
    bytes: int | None = None
    """Memory in Redis: what its batches hold, and what is reserved for its open rollouts."""
    weight: int | None = None
    """Sum of the weights of its batches that have not ended: how many of the workers' places it may ask for in turn."""

    def options(self) -> dict[str, str]:
        """Returns the options of an entry that set it."""
        return {name: str(limit) for name, limit in vars(self).items() if limit is not None}


@dataclass(frozen=True)
class ApiKey:
    """One key as the API knows it."""

    name: str
    scopes: frozenset[KeyScope]
    digest: bytes = field(repr=False)
    """SHA-256 of the key."""
    quota: KeyQuota = field(default_factory=KeyQuota)
    expires: datetime | None = None
    """When it ends, in UTC."""

    def entry(self) -> str:
        """Write the entry for ROLLOUTPOOL_API_KEYS."""
        options = self.quota.options()
        if self.expires is not None:
            options["expires"] = self.expires.strftime("%Y-%m-%dT%H:%M:%SZ")
        head = f"{self.name}:{'+'.join(sorted(self.scopes))}:{self.digest.hex()}"
        return ";".join((head, *(f"{name}={value}" for name, value in options.items())))

    def is_expired(self, now: datetime | None = None) -> bool:
        """Tells whether its time is over, now or at another time in UTC."""
        return self.expires is not None and self.expires <= (now or datetime.now(UTC))


def make_key(
    name: str, scopes: Iterable[KeyScope], *, quota: KeyQuota | None = None, expires: datetime | None = None
) -> tuple[str, ApiKey]:
    """Make a new key."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name[:80]!r}: a name is made of letters, digits, `.`, `_` and `-`, at most 64")
    key = f"rpk_{secrets.token_urlsafe(32)}"
    made = ApiKey(name, frozenset(scopes), _digest(key), quota or KeyQuota(), expires)
    _parse(made.entry())
    return key, made


def parse_keys(text: str) -> tuple[ApiKey, ...]:
    """Read entries."""
    lines = (line.partition("#")[0] for line in text.splitlines())
    return tuple(_parse(entry) for line in lines for entry in line.replace(",", " ").split())


def parse_quota(options: Iterable[str]) -> KeyQuota:
    """Read the quota that options set, like `open=5000` and `bytes=2gb`."""
    found: dict[str, int] = {}
    for option in options:
        name, _, value = option.partition("=")
        if name not in KeyQuota.__dataclass_fields__:
            raise ValueError(f"{name[:20]!r} is no option: there are open=, bytes=, weight= and expires=")
        size = _SIZE.fullmatch(value)
        if size is None or (size[2] and name != "bytes") or not int(size[1]):
            raise ValueError(f"{name}= needs a whole number above 0{', or one with kb, mb or gb' * (name == 'bytes')}")
        if name in found:
            raise ValueError(f"{name}= comes twice")
        found[name] = int(size[1]) * _UNITS.get((size[2] or "").lower(), 1)
    return KeyQuota(**found)


def parse_expiry(text: str) -> datetime:
    """Read a time in UTC, like `2026-12-01T00:00:00Z` or `2026-12-01`."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("expires= needs a time in UTC, like 2026-12-01T00:00:00Z") from None
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)


def find_key(keys: Iterable[ApiKey], key: str) -> ApiKey | None:
    """Find the entry of a key. Takes the same time for every wrong key."""
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
    rest, *options = rest.split(";")
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
    expiries = [option.removeprefix("expires=") for option in options if option.startswith("expires=")]
    try:
        if len(expiries) > 1:
            raise ValueError("expires= comes twice")
        expires = parse_expiry(expiries[0]) if expiries else None
        quota = parse_quota(option for option in options if not option.startswith("expires="))
    except ValueError as error:
        raise ValueError(f"key {name!r}: {error}") from None
    return ApiKey(name, allowed, bytes.fromhex(digest), quota, expires)
