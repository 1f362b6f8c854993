"""What we use of a library beyond its documented interface stands in a compat module, and each has a test.

ruff's SLF001 keeps private attributes out of the sources. It does not see the internals below, which have public names
or are keyword arguments.
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted(ROOT.glob("*/src/**/*.py"))
COMPAT = [path for path in SOURCES if path.name.endswith("_compat.py")]

INTERNALS = {
    "aiohttp": r"force_close\(|aiohttp\.connector|class \w+\(aiohttp\.(ClientRe(quest|sponse)|TCPConnector)\)",
    "celery": r"on_send_event_buffered|safe_say|from celery\.worker|billiard\.einfo",
    "flower": r"flower\.events",
    "kombu": r"can_consume\b|supports_batch_publish|default_channel\b|producer\.batch\(",
    "redis": r"pack_commands\(|call_with_retry\(|on_connect_check_health|parse_url\(|\.send_packed_command\(",
    "transformers": r"_raise_exceptions_for_missing_entries|cached_file\(|_compile_jinja|\bbackend_tokenizer\"",
    "typer": r"typer\.core\.",
    "uvicorn": r"httptools_impl|class \w+\(uvicorn\.Server\)|\.should_exit = ",
}
"""Of each library the words that only its compat modules may use."""
PRIVATE_IMPORT = re.compile(
    r"^\s*(?:from (?!__future__|rolloutpool_)\S*\b_\S* import|from (?!rolloutpool_)\S+ import _)", re.M
)


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("library", INTERNALS)
def test_only_a_compat_module_uses_a_librarys_internals(library: str) -> None:
    users = [path for path in SOURCES if re.search(INTERNALS[library], path.read_text(encoding="utf-8"))]
    outside = [shown(path) for path in users if path.name != f"{library}_compat.py"]
    assert users, f"nothing uses these internals of {library} any more: take them out of this test"
    assert not outside, f"move this into a {library}_compat.py, with its reason and a test: {outside}"


def test_nothing_imports_a_private_name_of_a_library() -> None:
    assert [shown(path) for path in SOURCES if PRIVATE_IMPORT.search(path.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize("path", COMPAT, ids=shown)
def test_a_compat_module_says_what_it_uses_and_has_a_test(path: Path) -> None:
    folder = (
        ROOT
        / "tests/unit"
        / path.parts[len(ROOT.parts)]
        / path.relative_to(ROOT).parent.relative_to(
            f"{path.parts[len(ROOT.parts)]}/src/rolloutpool_{path.parts[len(ROOT.parts)]}"
        )
    )
    assert (folder / f"test_{path.name}").is_file()
    assert re.match(
        r'"""Holds what .+ beyond its documented interface, so that an upgrade breaks this file alone\.\n\n- `',
        path.read_text(encoding="utf-8"),
    )
