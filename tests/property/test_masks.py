"""Ten thousand random conversations without a wrong mask; `make fuzz` plays a million."""

from pathlib import Path

import pytest
from tests.property.conversations import Tally, WrongMask, play
from tests.property.families import FAMILIES, lay_out
from tests.property.oracle import Oracle
from tests.tokenizers.layout import TINY
from tests.tokenizers.real import REAL_NAMES, TEMPLATE_NAMES, real_directory, real_tokenizer

from rolloutpool_common.rendering import TINY as TINY_NAME
from rolloutpool_common.rendering import ChatTokenizer, Delta, load_tokenizer
from rolloutpool_common.tokens.ledger import TokenLedger

EXAMPLES = 10_000
EACH = -(-EXAMPLES // (1 + len(REAL_NAMES) + len(TEMPLATE_NAMES)))


def play_all(tokenizer: ChatTokenizer, oracle: Oracle) -> Tally:
    tally = Tally()
    for number in range(EACH):
        tally.add(play(tokenizer, oracle, f"test:{number}"))
    return tally


@pytest.mark.real_tokenizer
@pytest.mark.parametrize("name", [*REAL_NAMES, *TEMPLATE_NAMES])
def test_no_wrong_mask(name: str) -> None:
    tally = play_all(real_tokenizer(name), Oracle(name, real_directory(name)))
    assert tally.examples == EACH
    assert tally.deltas_checked > EACH / 4  # else the oracle has fallen asleep
    assert tally.forks
    assert tally.tails


def test_no_wrong_mask_on_the_tiny_tokenizer() -> None:
    tally = play_all(load_tokenizer(TINY_NAME), Oracle("tiny", TINY))
    assert tally.deltas_checked > EACH
    assert tally.predictions > EACH / 4
    assert not tally.deltas_without_oracle


@pytest.mark.parametrize("name", FAMILIES)
def test_no_wrong_mask_on_a_family_of_our_own(name: str, tmp_path: Path) -> None:
    directory = dict(lay_out(tmp_path))[f"family:{name}"]
    tally = play_all(load_tokenizer(str(directory)), Oracle(f"family:{name}", directory))
    assert tally.deltas_checked > EACH / 2


def test_an_example_is_a_function_of_its_seed() -> None:
    tokenizer, oracle = load_tokenizer(TINY_NAME), Oracle("tiny", TINY)
    first, again, other = (play(tokenizer, oracle, seed) for seed in ("a", "a", "b"))
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
        play_all(load_tokenizer(TINY_NAME), Oracle("tiny", TINY))
