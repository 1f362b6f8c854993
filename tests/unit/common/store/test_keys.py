"""Uids are batch and index; every key is described, and named in the store alone."""

import re
from pathlib import Path

import pytest

from rolloutpool_common.composition import CAPABILITIES
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


def is_home(path: Path) -> bool:
    """Whether keys are named there: in the store, and in what capabilities keep there."""
    return path.is_relative_to(STORE) or path.is_relative_to(STORE.parent / "capabilities")


def test_only_the_store_names_keys() -> None:
    """`rp:` and what follows; the documents and tests may."""
    sources = [
        path
        for folder in ("common", "api", "worker", "trainer")
        for path in (ROOT / folder / "src").rglob("*")
        if path.suffix in (".py", ".lua") and not is_home(path)
    ]
    assert len(sources) > 100
    assert [path.name for path in sources if re.search(r"\brp:", path.read_text())] == []


def test_every_key_is_described_at_the_top_of_its_module() -> None:
    described = set(re.findall(r"^rp:([a-z_]+)", keys.__doc__ or "", re.MULTILINE))
    named = set()
    for path in [STORE / "keys.py", *sorted((STORE / "scripts").glob("*.lua"))]:
        text = path.read_text().replace(keys.__doc__ or "", "")
        named |= set(re.findall(r"(?:\{PREFIX\}|P \.\. ')([a-z_]+)", text))
    # Parts of keys that capabilities keep for a rollout or a batch are described with them.
    assert named == described


@pytest.mark.parametrize("name", [capability.name for capability in CAPABILITIES])
def test_a_capability_describes_its_keys_where_it_names_them(name: str) -> None:
    folder = STORE.parent / "capabilities" / name
    described = set(re.findall(r"^rp:([a-z_]+)", "\n".join(one.read_text() for one in folder.glob("*.py")), re.M))
    lua = "".join(one.read_text() for one in (folder / "scripts").glob("*.lua"))
    named = set(re.findall(r"P \.\. '([a-z_]+)", lua))
    kernel = set(re.findall(r"^rp:([a-z_]+)", keys.__doc__ or "", re.MULTILINE))
    assert named <= described | kernel
