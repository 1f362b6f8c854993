"""The viewer's files: what was copied in is unchanged, and what is ours makes no markup and asks no other host."""

import hashlib
import json
import re
from pathlib import Path

import pytest

from rolloutpool_common.protocol.rows import ROW_FIELDS
from rolloutpool_common.viewer.assets import PAGE, POLICY, viewer_files

VENDOR = Path(__file__).parents[4] / "common" / "src" / "rolloutpool_common" / "viewer" / "pages" / "vendor"
TYPES = Path(__file__).parents[3] / "viewer" / "types"
FILES = viewer_files()
MODULES = {name: content.decode() for name, (content, _) in FILES.items() if name.endswith(".js")}
OURS = {name: text for name, text in MODULES.items() if not name.startswith("vendor/")}


def test_what_was_copied_in_is_what_the_record_says() -> None:
    record = json.loads((VENDOR / "vendored.json").read_text())
    found = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in VENDOR.iterdir()
        if path.name != "vendored.json"
    }
    assert found == record["sha256"]
    assert (record["license"], record["version"]) == ("Apache-2.0 AND MIT", "3.1.1")
    assert {"LICENSE.htm.txt", "LICENSE.preact.txt"} <= set(found)


def test_every_file_that_is_named_is_there() -> None:
    page = FILES[PAGE][0].decode()
    named = set(re.findall(r'(?:src|href)="ui/([^"]+)"', page))
    for text in OURS.values():
        named |= set(re.findall(r'from "\./([^"]+)"', text))
    assert named | {PAGE} == set(FILES)
    assert "<script>" not in page
    assert "style=" not in page


def test_the_types_name_fields_that_rows_have() -> None:
    types = (TYPES / "viewer.d.ts").read_text()
    (block,) = re.findall(r"interface RowColumns \{(.*?)\n  \}", types, re.DOTALL)
    named = set(re.findall(r"^    (\w+):", block, re.MULTILINE))
    assert len(named) > 10
    assert named <= set(ROW_FIELDS)


@pytest.mark.parametrize("name", OURS)
def test_no_module_of_ours_can_make_markup_of_text(name: str) -> None:
    forbidden = (
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|srcdoc|createContextualFragment"
    )
    assert re.findall(forbidden, OURS[name]) == []
    assert len(OURS[name].splitlines()) <= 400


def test_the_policy_allows_nothing_but_the_pages_own_files() -> None:
    directives = dict(part.split(" ", 1) for part in POLICY.split("; "))
    assert directives.pop("require-trusted-types-for") == "'script'"
    assert set(directives.values()) == {"'none'", "'self'"}
    assert directives["default-src"] == "'none'"
