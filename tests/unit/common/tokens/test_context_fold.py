"""The fold goes through the contexts that the ledger had; the property test has them under random histories."""

from array import array

import pytest

from rolloutpool_common.tokens.arrays import unpack
from rolloutpool_common.tokens.context_fold import ContextFold
from rolloutpool_common.tokens.errors import LedgerCorrupt
from rolloutpool_common.tokens.ledger import TokenLedger


def test_each_entry_s_digest_is_found_again() -> None:
    ledger = TokenLedger()
    ledger.seed([1, 2, 3])
    ledger.append_sampled([10, 11], [-0.5, -0.25], turn=1)
    ledger.append_glue([20], turn=1)
    ledger.accept_echo([1, 2, 3, 10, 11, 21])
    ledger.append_sampled([12], [-0.1], turn=2)
    ledger.accept_echo([1, 2, 7])
    fold = ContextFold()
    for entry in ledger.entries:
        assert fold.add(unpack(entry.ids, array("I")), getattr(entry, "keep", None)) == entry.after
    assert fold.ids.tolist() == ledger.ids == [1, 2, 7]


def test_what_was_seen_before_a_cut_stays() -> None:
    fold = ContextFold()
    fold.add(array("I", [1, 2, 3]))
    before = fold.ids
    fold.add(array("I", [9]), keep=1, anew=True)
    assert (before.tolist(), fold.ids.tolist()) == ([1, 2, 3], [1, 9])
    later = fold.ids
    fold.add(array("I", [8]), keep=1)
    assert later.tolist() == fold.ids.tolist() == [1, 8]


@pytest.mark.parametrize("keep", [-1, 3])
def test_more_than_there_is_cannot_be_kept(keep: int) -> None:
    fold = ContextFold()
    fold.add(array("I", [1, 2]))
    with pytest.raises(LedgerCorrupt, match=f"keeps {keep} ids of a context of 2"):
        fold.add(array("I", [9]), keep)
