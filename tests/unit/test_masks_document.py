"""The blocks of docs/masks.md give what the document says, and its tables name what there is."""

import doctest
from pathlib import Path

import pytest
from tests.golden.catalogue import FAMILIES
from tests.property.test_masks import FEW, MANY
from tests.tokenizers.real import REAL_NAMES, TEMPLATE_NAMES

from rolloutpool_common.protocol.options import MaskMode
from rolloutpool_common.protocol.result import Alignment
from rolloutpool_common.rendering import DriftLabel
from rolloutpool_common.rendering.checks.report import TokenizerVerdict
from rolloutpool_common.tokens.segments import SegmentKind

PATH = Path(__file__).parents[2] / "docs" / "masks.md"
TEXT = PATH.read_text(encoding="utf-8")
TESTS = PATH.parents[1].joinpath("tests", "README.md").read_text(encoding="utf-8")


def test_the_blocks_are_true() -> None:
    failed, tried = doctest.testfile(str(PATH), module_relative=False, encoding="utf-8")
    assert tried > 40
    assert failed == 0


@pytest.mark.parametrize("names", [SegmentKind, MaskMode, Alignment], ids=lambda names: names.__name__)
def test_every_name_is_explained(names: type[SegmentKind | MaskMode | Alignment]) -> None:
    assert [name for name in names if f"`{name}`" not in TEXT] == []


def test_every_label_and_verdict_is_explained() -> None:
    assert [label for label in DriftLabel if label is not DriftLabel.NONE and f"`{label}`" not in TEXT] == []
    assert [verdict for verdict in TokenizerVerdict if f"**{verdict}**" not in TEXT] == []


def test_the_counts_are_those_of_the_tests() -> None:
    n = 1 + len(REAL_NAMES) + len(TEMPLATE_NAMES)
    assert f"{FEW * n:,} random conversations on {n} tokenizers and templates ({MANY * n:,} with `make" in TESTS
    assert len(FAMILIES) == 10
    assert "on ten families" in TESTS
