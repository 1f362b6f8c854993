"""Hundreds of random conversations without a wrong mask; `make fuzz` plays a million."""

import pytest
from tests.oracle.conversations import Player
from tests.oracle.sets import entries, player
from tests.property.conversations import Tally, WrongMask, play
from tests.property.families import FAMILIES
from tests.support.examples import examples
from tests.tokenizers.real import REAL_NAMES, TEMPLATE_NAMES, real_tokenizer

from rolloutpool_common.rendering import TINY as TINY_NAME
from rolloutpool_common.rendering import ChatTokenizer, Delta, load_tokenizer
from rolloutpool_common.tokens.ledger import TokenLedger

FEW, MANY = 30, 47
"""Conversations on each tokenizer; with fewer, some see no fork."""
EACH = examples(FEW, MANY)
ENTRIES = {entry.name: entry for which in ("families", "golden") for entry in entries(which)}


def loaded(name: str) -> Player:
    return player(ENTRIES[name])


def play_all(tokenizer: ChatTokenizer, player: Player) -> Tally:
    tally = Tally()
    for number in range(EACH):
        tally.add(play(tokenizer, player, f"test:{number}"))
    return tally


@pytest.mark.real_tokenizer
@pytest.mark.parametrize("name", [*REAL_NAMES, *TEMPLATE_NAMES])
def test_no_wrong_mask(name: str) -> None:
    tally = play_all(real_tokenizer(name), loaded(name))
    assert tally.examples == EACH
    assert tally.deltas_checked > EACH / 4  # else the oracle has fallen asleep
    assert tally.forks
    assert tally.tails


def test_no_wrong_mask_on_the_tiny_tokenizer() -> None:
    tally = play_all(load_tokenizer(TINY_NAME), loaded("tiny"))
    assert tally.deltas_checked > EACH
    assert tally.predictions > EACH / 4
    assert tally.deltas_without_oracle < EACH / 10  # its template takes no objects


@pytest.mark.parametrize("name", FAMILIES)
def test_no_wrong_mask_on_a_family_of_our_own(name: str) -> None:
    entry = ENTRIES[f"family:{name}"]
    tally = play_all(load_tokenizer(str(entry.directory)), player(entry))
    assert tally.deltas_checked > EACH / 2


def test_an_example_is_a_function_of_its_seed() -> None:
    tokenizer, one = load_tokenizer(TINY_NAME), loaded("tiny")
    first, again, other = (play(tokenizer, one, seed) for seed in ("a", "a", "b"))
    assert first == again
    assert first != other


def shifted(ledger: TokenLedger) -> list[int]:
    mask = [int(segment.trained) for segment in ledger.segments for _ in range(segment.n)]
    return [*mask[1:], 0]


def one_more(tokenizer: ChatTokenizer, *_: object, **__: object) -> Delta:
    return Delta((), (0,))


@pytest.mark.parametrize(
    ("target", "name", "wrong"),
    [(TokenLedger, "mask", property(shifted)), (ChatTokenizer, "render_delta", one_more)],
    ids=["mask", "delta"],
)
def test_the_property_notices_what_is_wrong(
    monkeypatch: pytest.MonkeyPatch, target: type, name: str, wrong: object
) -> None:
    monkeypatch.setattr(target, name, wrong)
    with pytest.raises(WrongMask):
        play_all(load_tokenizer(TINY_NAME), loaded("tiny"))
