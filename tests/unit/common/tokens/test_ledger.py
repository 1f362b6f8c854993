"""The ledger's rules one by one; `tests/property/test_ledger.py` has them under random histories."""

import hashlib
import math
from array import array
from dataclasses import replace

import pytest

from rolloutpool_common.tokens.comparison import EchoKind
from rolloutpool_common.tokens.entries import TokenizerFingerprint
from rolloutpool_common.tokens.errors import (
    BadLogprob,
    BadTokenId,
    LedgerCorrupt,
    LedgerError,
    LedgerMismatch,
    LedgerOrder,
    TokenCountMismatch,
)
from rolloutpool_common.tokens.ledger import TokenLedger


def two_turns() -> TokenLedger:
    ledger = TokenLedger()
    ledger.seed([1, 2, 3])
    ledger.append_sampled([10, 11], [-0.5, -0.25], turn=1, policy_version="v1")
    ledger.append_close([99], turn=1)
    ledger.append_glue([20, 21], turn=1)
    ledger.append_sampled([12], [-1.0], turn=2)
    return ledger


def test_the_example_at_the_top_of_the_module() -> None:
    ledger = TokenLedger()
    ledger.seed([1, 2, 3])
    ledger.append_sampled([10, 11], [-0.5, -0.2], turn=1)
    assert (ledger.ids, ledger.mask) == ([1, 2, 3, 10, 11], [0, 0, 0, 1, 1])
    ledger.append_glue([20], turn=1)
    assert (ledger.ids, ledger.mask) == ([1, 2, 3, 10, 11, 20], [0, 0, 0, 1, 1, 0])
    assert ledger.accept_echo([1, 2, 3, 10, 11, 21]).kind is EchoKind.TAIL
    assert (ledger.ids, ledger.mask) == ([1, 2, 3, 10, 11, 21], [0, 0, 0, 1, 1, 0])
    assert ledger.accept_echo([1, 2, 3, 7, 21]).kind is EchoKind.FORK
    assert (ledger.ids, ledger.mask) == ([1, 2, 3, 7, 21], [0, 0, 0, 0, 0])
    ledger.append_sampled([12], [-0.1], turn=2)
    assert (ledger.ids, ledger.mask) == ([1, 2, 3, 7, 21, 12], [0, 0, 0, 0, 0, 1])
    first, second = ledger.samples()
    assert (first.prompt_ids, first.response_ids, first.response_mask) == ([1, 2, 3], [10, 11], [1, 1])
    assert (second.prompt_ids, second.response_ids, second.response_mask) == ([1, 2, 3, 7, 21], [12], [1])


def test_export_ends_at_the_last_sampled_token() -> None:
    ledger = two_turns()
    ledger.append_glue([30, 31, 32], turn=2)
    assert ledger.pending_glue == 3
    assert list(ledger.last_sampled(1)) == [12]
    assert ledger.samples()[0].response_ids[-1] == 12


def test_untrained_turn_keeps_its_ids_and_loses_its_mask() -> None:
    ledger = TokenLedger()
    ledger.seed([1])
    ledger.append_sampled([5, 6], [-1.0, -2.0], turn=1, train=False)
    (sample,) = ledger.samples()
    assert (sample.response_ids, sample.response_mask, sample.response_logprobs) == ([5, 6], [0, 0], [0.0, 0.0])
    assert ledger.segments[-1].logprobs == (-1.0, -2.0)


def test_digest_is_blake2b_of_little_endian_ids() -> None:
    ledger = two_turns()
    ledger.append_glue([30], turn=2)
    little = b"".join(i.to_bytes(4, "little") for i in ledger.ids)
    assert ledger.digest == hashlib.blake2b(little, digest_size=16).digest()
    assert ledger.head_digest == hashlib.blake2b(little[:-4], digest_size=16).digest()


def test_echo_that_differs_before_the_head_forks() -> None:
    ledger = two_turns()
    ledger.append_glue([30], turn=2)
    verdict = ledger.accept_echo([1, 2, 3, 10, 12, 99, 20, 21, 12, 30])
    assert (verdict.kind, verdict.first_difference) == (EchoKind.FORK, 4)
    assert (ledger.head, ledger.pending_glue) == (0, 0)
    ledger.append_sampled([13], [-1.5], turn=3)
    first, second = ledger.samples()
    assert first == two_turns().samples()[0]
    assert second.prompt_ids == [1, 2, 3, 10, 12, 99, 20, 21, 12, 30]
    assert (second.response_ids, second.response_mask) == ([13], [1])


def test_delta_echo_compares_behind_the_proved_prefix() -> None:
    ledger = two_turns()
    ledger.append_glue([30], turn=2)
    assert ledger.compare([30], prefix=9).kind is EchoKind.EQUAL
    assert ledger.compare([31], prefix=9).first_difference == 9
    with pytest.raises(LedgerOrder):
        ledger.compare([30], prefix=11)


def test_forks_store_only_what_they_add() -> None:
    ledger = TokenLedger()
    ledger.seed(range(1000, 11000))
    for turn in range(1, 51):
        ledger.append_sampled([turn], [0.0], turn=turn)
        ledger.accept_echo([*ledger.ids[:-1], 500 + turn])
    stored = sum(len(entry.ids) for entry in ledger.entries[1:])
    assert stored < 50 * 40
    assert len(ledger.samples()) == 50


def test_another_fingerprint_cannot_resume() -> None:
    def fingerprint(version: str) -> TokenizerFingerprint:
        return TokenizerFingerprint(tokenizer_sha256="a", template_sha256="b", transformers_version=version)

    ledger = TokenLedger(fingerprint("5.0.0"))
    ledger.seed([1])
    assert TokenLedger.replay(ledger.entries, fingerprint=fingerprint("5.0.0")) == ledger
    with pytest.raises(LedgerMismatch, match=r"5\.0\.0.*5\.0\.1"):
        TokenLedger.replay(ledger.entries, fingerprint=fingerprint("5.0.1"))


@pytest.mark.parametrize("damage", ["drop", "double", "alter", "swap"])
def test_damaged_journal_is_refused(damage: str) -> None:
    entries = list(two_turns().entries)
    if damage == "drop":
        del entries[2]
    elif damage == "double":
        entries.insert(2, entries[2])
    elif damage == "alter":
        entries[3] = replace(entries[3], ids=entries[2].ids)
    else:
        entries[2], entries[3] = entries[3], entries[2]
    with pytest.raises(LedgerCorrupt):
        TokenLedger.replay(entries)


def test_unreadable_ids_are_refused() -> None:
    entry = replace(two_turns().entries[0], ids="AAA")
    with pytest.raises(LedgerCorrupt):
        TokenLedger.replay([entry])


def test_what_would_break_an_invariant_raises_and_changes_nothing() -> None:
    ledger = two_turns()
    ledger.append_glue([30], turn=2)
    before = TokenLedger.replay(ledger.entries)
    with pytest.raises(TokenCountMismatch):
        ledger.append_sampled([1, 2], [0.0], turn=3)
    for unknown in (math.nan, math.inf, -math.inf):
        with pytest.raises(BadLogprob):
            ledger.append_sampled([1], [unknown], turn=3)
    with pytest.raises(BadLogprob):
        ledger.append_sampled([1], [None], turn=3)  # type: ignore[list-item]
    for bad in (-1, 2**32, "x", 1.0):
        with pytest.raises(BadTokenId):
            ledger.append_glue([bad], turn=2)  # type: ignore[list-item]
    with pytest.raises(LedgerOrder):
        ledger.append_sampled([1], [0.0], turn=2)
    with pytest.raises(LedgerOrder):
        ledger.append_glue([1], turn=1)
    with pytest.raises(LedgerOrder):
        ledger.seed([1])
    with pytest.raises(LedgerError, match="empty"):
        TokenLedger().seed([])
    with pytest.raises(LedgerOrder):
        TokenLedger().append_glue([1], turn=1)
    with pytest.raises(LedgerOrder):
        TokenLedger().accept_echo([1])
    assert ledger == before


def test_arrays_are_ids_too() -> None:
    ledger = TokenLedger()
    ledger.seed(array("I", [1, 2]))
    assert ledger.ids == [1, 2]
    assert ledger != [1, 2]


def test_an_echo_without_its_prefix_replaces_the_tail_behind_the_difference() -> None:
    ledger = TokenLedger()
    ledger.seed([1, 2, 3])
    ledger.append_sampled([10, 11], [-0.5, -0.2], turn=1)
    ledger.append_glue([20, 21], turn=1)
    assert ledger.accept_echo([20, 22, 23], prefix=5).first_difference == 6
    assert ledger.ids == [1, 2, 3, 10, 11, 20, 22, 23]
