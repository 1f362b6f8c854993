"""One key for the secrets of all tests, so that each process can read the secrets that another one has stored."""

import atexit
import functools
import os
import tempfile
from pathlib import Path

from rolloutpool_common.store import SecretStore

SECRETS_KEY = "dGVzdHMgYXJlIG5vdCBzZWNyZXQsIHRoaXMgaXMgMzI="
SECRETS = SecretStore([SECRETS_KEY], source="tests")


@functools.cache
def secrets_file() -> Path:
    """The key in a file of this process, as ROLLOUTPOOL_SECRETS_FILE wants it."""
    handle, name = tempfile.mkstemp(prefix="rolloutpool-secrets-")
    with os.fdopen(handle, "w") as file:
        file.write(SECRETS_KEY + "\n")
    path = Path(name)
    atexit.register(path.unlink)
    return path
