"""Secrets at rest: a trainer's bearer key and a webhook's signing secret lie in Redis encrypted, or not at all.

Invariant: what `encrypt` returns can be read with the key file alone; nothing else of a secret is ever stored. The
file holds one Fernet key a line: the first encrypts, all of them decrypt. To replace a key, add the new one everywhere,
then move it to the front everywhere, then take the old one out.
"""

import hashlib
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import orjson
from cryptography.fernet import Fernet, InvalidToken

from rolloutpool_common.errors import RolloutPoolError, SecretUnreadable
from rolloutpool_common.store.errors import StoreError

__all__ = ["SecretStore", "SecretsFileInvalid", "SecretsUnkept"]

SETTING = "ROLLOUTPOOL_SECRETS_FILE"
FIELD = "callback_api_key"
"""The one field of a rollout's spec that is a secret."""


class SecretsFileInvalid(RolloutPoolError):
    """The file with the keys for secrets cannot be used."""


class SecretsUnkept(StoreError):
    """This pool has no key to keep secrets with; set ROLLOUTPOOL_SECRETS_FILE, for API and workers alike."""


class SecretStore:
    """Seals and opens secrets with the keys of one file."""

    def __init__(self, keys: Sequence[str], *, source: str) -> None:
        """`source` says in errors where the keys are from; raises `SecretsFileInvalid`."""
        self._source = source
        try:
            self._keys = {hashlib.sha256(key.encode()).hexdigest()[:8]: Fernet(key) for key in keys}
        except ValueError:
            raise SecretsFileInvalid(
                f"{source}: each line must be a key as `rolloutpool make-secrets-key` prints it"
            ) from None

    @classmethod
    def none(cls) -> Self:
        """Without any key: what is no secret can be stored all the same."""
        return cls((), source=f"no {SETTING}")

    @classmethod
    def load(cls, path: Path | None) -> Self:
        """The keys in a file, none without a file; raises `SecretsFileInvalid`, whose message names the file."""
        if path is None:
            return cls.none()
        try:
            mode = path.stat().st_mode
            lines = path.read_text(encoding="ascii").split()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is no text"
            raise SecretsFileInvalid(f"{SETTING}: {path} cannot be read: {reason}") from None
        if mode & (stat.S_IRWXO | stat.S_IWGRP):
            raise SecretsFileInvalid(f"{SETTING}: others may read or change {path}; chmod 600 it, and replace its keys")
        if not lines:
            raise SecretsFileInvalid(f"{SETTING}: {path} is empty; `rolloutpool make-secrets-key` makes a key")
        return cls(lines, source=f"{SETTING}={path}")

    @property
    def usable(self) -> bool:
        """Whether secrets can be kept."""
        return bool(self._keys)

    def encrypt(self, secret: str) -> str:
        """The secret as it may be stored; raises `SecretsUnkept`."""
        for name, key in self._keys.items():
            return f"{name}:{key.encrypt(secret.encode()).decode()}"
        raise SecretsUnkept

    def decrypt(self, encrypted: str) -> str:
        """The secret behind `encrypt`; raises `SecretUnreadable`, which says which key it needs and which there are."""
        name, _, token = encrypted.partition(":")
        key = self._keys.get(name)
        try:
            if key is not None:
                return key.decrypt(token).decode()
        except (InvalidToken, ValueError):
            raise SecretUnreadable(f"a secret encrypted with key {name} was changed since; submit it again") from None
        raise SecretUnreadable(
            f"a secret was encrypted with key {name[:8]} by the API, and this process ({self._source}) has "
            f"{', '.join(self._keys) or 'none'}; give API and workers the same keys"
        )

    def encrypt_field(self, document: bytes, encrypted: dict[str, str]) -> bytes:
        """A JSON object whose secret field is encrypted; `encrypted` remembers, because thousands share one secret."""
        if FIELD.encode() not in document:
            return document
        fields: dict[str, Any] = orjson.loads(document)
        secret = fields.get(FIELD)
        if not secret:
            return document
        if secret not in encrypted:
            encrypted[secret] = self.encrypt(secret)
        return orjson.dumps({**fields, FIELD: encrypted[secret]})
