"""The contexts that a ledger's entries lead through, without what a ledger knows besides: ids and their digest.

A journal that is kept beside a result has no digests (`protocol/kept_journal.py`). Here they are computed again, and a
reader finds what each turn was sampled after.
"""

from array import array

from rolloutpool_common.tokens.arrays import id_bytes, id_hash
from rolloutpool_common.tokens.errors import LedgerCorrupt


class ContextFold:
    """The context of one ledger, entry by entry."""

    def __init__(self) -> None:
        self.ids = array("I")
        self._hash = id_hash()

    def add(self, ids: "array[int]", keep: int | None = None, *, anew: bool = False) -> str:
        """Adds an entry's ids."""
        if keep is not None:
            if not 0 <= keep <= len(self.ids):
                raise LedgerCorrupt(f"An entry keeps {keep} ids of a context of {len(self.ids)}.")
            if anew:
                self.ids = self.ids[:keep]
            else:
                del self.ids[keep:]
            self._hash = id_hash(self.ids)
        self.ids.extend(ids)
        self._hash.update(id_bytes(ids))
        return self._hash.hexdigest()
