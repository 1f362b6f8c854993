"""Uids are batch and index; every key is described, and named in the store alone."""

import re
from pathlib import Path

import pytest

from rolloutpool_common.store import keys
from rolloutpool_common.store.keys import split_uid, uid_of


@pytest.mark.parametrize(("batch_id", "index"), [("b0", 0), ("b" + "f" * 32, 9999), ("with-dash", 7)])
def test_a_uid_comes_apart_as_it_was_put_together(batch_id: str, index: int) -> None:
    assert split_uid(uid_of(batch_id, index)) == (batch_id, index)


@pytest.mark.parametrize("uid", ["", "b", "-", "b-", "b-x", "b-1.0", "b- 1", "b-+1", "b-\uff11", "b-1234567"])
def test_what_is_no_uid(uid: str) -> None:
    assert split_uid(uid) is None


ROOT = Path(__file__).parents[4]
STORE = ROOT / "common" / "src" / "rolloutpool_common" / "store"


def test_only_the_store_names_keys() -> None:
    """`rp:` and what follows; the documents and tests may."""
    sources = [
        path
        for folder in ("common", "api", "worker", "trainer")
        for path in (ROOT / folder / "src").rglob("*")
        if path.suffix in (".py", ".lua") and not path.is_relative_to(STORE)
    ]
    assert len(sources) > 100
    assert [path.name for path in sources if re.search(r"\brp:", path.read_text())] == []


def test_every_key_is_described_at_the_top_of_its_module() -> None:
    described = set(re.findall(r"^rp:([a-z_]+)", keys.__doc__ or "", re.MULTILINE))
    named = set()
    for path in [STORE / "keys.py", *sorted((STORE / "scripts").glob("*.lua"))]:
        text = path.read_text().replace(keys.__doc__ or "", "")
        named |= set(re.findall(r"(?:\{PREFIX\}|P \.\. ')([a-z_]+)", text))
    assert named == described
