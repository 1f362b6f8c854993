"""Secrets at rest: a trainer's bearer key and a webhook's signing secret are in Redis encrypted, or not at all.

The key file holds one Fernet key per line: the first encrypts, all of them decrypt. To replace a key:

1. Add the new key at the end of the file, on all API processes and workers.
2. Move it to the front everywhere. From now on it encrypts.
3. Once nothing is stored any more that the old key encrypted, remove the old key.
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

SETTING = "ROLLOUTPOOL_SECRETS_FILE"
FIELD = "callback_api_key"
"""The one field of a rollout's spec that is a secret."""


class SecretsFileInvalid(RolloutPoolError):
    """The file with the keys for secrets cannot be used."""


class SecretsUnkept(StoreError):
    """This pool has no key to keep secrets with; set ROLLOUTPOOL_SECRETS_FILE, for API and workers alike."""


class SecretStore:
    """Encrypts and decrypts secrets with the keys of one file."""

    def __init__(self, keys: Sequence[str], *, source: str) -> None:
        """`source` names the keys' origin in errors; raises `SecretsFileInvalid`."""
        self._source = source
        try:
            self._keys = {hashlib.sha256(key.encode()).hexdigest()[:8]: Fernet(key) for key in keys}
        except ValueError:
            raise SecretsFileInvalid(
                f"{source}: each line must be a key as `rolloutpool make-secrets-key` prints it"
            ) from None

    @classmethod
    def none(cls) -> Self:
        """Makes one without any key: it refuses secrets, and everything else can be stored."""
        return cls((), source=f"no {SETTING}")

    @classmethod
    def load(cls, path: Path | None) -> Self:
        """Reads the keys of a file; without a file there are none. Raises `SecretsFileInvalid`."""
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

    def encrypt(self, secret: str) -> str:
        """Encrypts a secret with the first key; raises `SecretsUnkept` where there is none."""
        # In the order of the file. The key's name goes along, so that `decrypt` knows which one to take.
        for name, key in self._keys.items():
            return f"{name}:{key.encrypt(secret.encode()).decode()}"
        raise SecretsUnkept

    def decrypt(self, encrypted: str) -> str:
        """Decrypts what `encrypt` made; raises `SecretUnreadable`, which names the keys concerned."""
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
        """Encrypts the secret field of a JSON object."""
        # Most documents hold no secret, and this look is cheaper than parsing thousands of them.
        if FIELD.encode() not in document:
            return document
        fields: dict[str, Any] = orjson.loads(document)
        secret = fields.get(FIELD)
        if not secret:
            return document
        if secret not in encrypted:
            encrypted[secret] = self.encrypt(secret)
        return orjson.dumps({**fields, FIELD: encrypted[secret]})
