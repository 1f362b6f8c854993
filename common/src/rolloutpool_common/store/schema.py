"""The version of what rolloutpool keeps in Redis: what this program reads, and the refusal of all else.

`rp:schema` holds the version. It changes when a program can no longer read what the program after it writes: another
name of a key or of a hash's field, another form of a journal record. This program writes `SCHEMA_VERSION` and reads
from `OLDEST_READ` on.

1. Every connection runs `scripts/epoch.lua` before any other command. The script looks at the version and at the epoch
   in one step, so no command of ours ever reaches data that this program does not know.
2. Redis holds no data of ours: the script sets `rp:schema` to our version.
3. `rp:schema` has our version: the connection is opened.
4. `rp:schema` has an older version that this program reads: the connection is opened, and the version stays while a
   worker lives that reads no other. What is in flight goes on with workers of either release.
5. `rp:schema` has any other version: the script changes nothing, and the connection is closed with `ForeignSchema`.
6. There is `rp:epoch` and no `rp:schema`: the data is of version 1. Programs of that time wrote `rp:epoch` with each
   connection and no version. The connection is closed as in step 5.

After step 4 the older workers run dry: each batch that comes now needs a worker of this release (`protocol/offers.py`),
so it waits in a lane that they don't read, and their claim of it is answered `unsuited`. They finish what they have.
With the last of them `rp:schema` rises to our version (`scripts/offers.lua`), and no older program can come any more.
Until then an upgrade can be taken back; from then on, to go back, drain first, and begin with an empty Redis.

A worker opens its first connection when it starts, so it ends with the message. The API looks when it starts as well,
but it also starts while Redis is down: then its first connection is refused later, `/readyz` and all requests for data
answer 503 with the same message, and nothing is written.

| version | what changed |
|---|---|
| 1 | the first one; `rp:schema` is absent |
| 2 | the fields of hashes and streams are spelled out (`status`, not `s`); journal records are typed and have `v` |
| 3 | a result's record is its journal, which a fork of it is made of; all that is in flight is as in version 2 |
"""

from rolloutpool_common.store.errors import StoreError

SCHEMA_VERSION = 3
OLDEST_READ = 2


class ForeignSchema(StoreError):
    """Redis holds the data of another version of rolloutpool."""


def check_version(found: int) -> None:
    """Raises `ForeignSchema` with instructions unless this program reads `found`, the version of the data in Redis."""
    if OLDEST_READ <= found <= SCHEMA_VERSION:
        return
    raise ForeignSchema(
        f"this Redis holds data of schema version {found}, and this program reads version {SCHEMA_VERSION}. "
        f"To move on: (1) start the version of rolloutpool that wrote the data again, and finish or cancel its running "
        "batches; (2) stop its workers, and read the finished results with its API, which goes on serving them from "
        "this Redis; saved results keep their form, so clients of this version read them too; (3) start this version "
        "with an empty Redis, for instance another database number in ROLLOUTPOOL_REDIS_URL"
    )
