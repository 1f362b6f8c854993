"""The version of what rolloutpool keeps in Redis, and the refusal of every other version.

`rp:schema` holds the version. It changes when a program can no longer read what the program before it has written:
another name of a key or of a hash's field, another form of a journal record. This program knows one version,
`SCHEMA_VERSION`; it neither reads nor converts others.

1. Every connection runs `scripts/epoch.lua` before any other command. The script looks at the version and at the epoch
   in one step, so no command of ours ever reaches data that this program does not know.
2. Redis holds no data of ours: the script sets `rp:schema` to our version.
3. `rp:schema` has our version: the connection is opened.
4. `rp:schema` has another version: the script changes nothing, and the connection is closed with `ForeignSchema`.
5. There is `rp:epoch` and no `rp:schema`: the data is of version 1. Programs of that time wrote `rp:epoch` with each
   connection and no version. The connection is closed as in step 4.

A worker opens its first connection when it starts, so it ends with the message. The API looks when it starts as well,
but it also starts while Redis is down: then its first connection is refused later, `/readyz` and all requests for data
answer 503 with the same message, and nothing is written.

| version | what changed |
|---|---|
| 1 | the first one; `rp:schema` is absent |
| 2 | the fields of hashes and streams are spelled out (`status`, not `s`); journal records are typed and have `v` |
"""

from rolloutpool_common.store.errors import StoreError

__all__ = ["SCHEMA_VERSION", "ForeignSchema", "check_version"]

SCHEMA_VERSION = 2


class ForeignSchema(StoreError):
    """Redis holds the data of another version of rolloutpool."""


def check_version(found: int) -> None:
    """Raises `ForeignSchema` with instructions unless `found`, the version of the data in Redis, is ours."""
    if found == SCHEMA_VERSION:
        return
    raise ForeignSchema(
        f"this Redis holds data of schema version {found}, and this program reads version {SCHEMA_VERSION}. "
        f"To move on: (1) start the version of rolloutpool that wrote the data again, and finish or cancel its running "
        "batches; (2) stop its workers, and read the finished results with its API, which goes on serving them from "
        "this Redis; saved results keep their form, so clients of this version read them too; (3) start this version "
        "with an empty Redis, for instance another database number in ROLLOUTPOOL_REDIS_URL"
    )
