"""The workshop's promises: a lock that is complete, hashed and names no machine; versions that agree; small modules.

`make check` and `make test` build on these; what they can't see, this file does.
"""

import ast
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
DISTRIBUTIONS = ("common", "api", "worker", "rl", "trainer")
LOCK = (ROOT / "requirements.lock").read_text()
MODULES = sorted(path.relative_to(ROOT) for name in DISTRIBUTIONS for path in (ROOT / name / "src").rglob("*.py"))
LONGEST_MODULE = 400
TESTS = [path.relative_to(ROOT) for path in (ROOT / "tests").rglob("*.py") if "node_modules" not in path.parts]


def manifest(folder: str) -> dict[str, Any]:
    """The parsed pyproject.toml of one distribution; "." is the workspace."""
    return tomllib.loads((ROOT / folder / "pyproject.toml").read_text())


def declared() -> dict[str, list[Requirement]]:
    """What each manifest asks for, extras and groups included, by folder."""
    found = {}
    for folder in (".", *DISTRIBUTIONS):
        document = manifest(folder)
        project = document["project"]
        lines = [
            *project.get("dependencies", ()),
            *(line for extra in project.get("optional-dependencies", {}).values() for line in extra),
            *(line for group in document.get("dependency-groups", {}).values() for line in group),
        ]
        found[folder] = [Requirement(line) for line in lines]
    return found


def locked() -> dict[str, list[tuple[Version, int]]]:
    """Version and number of hashes of every pin in the lock, by canonical name."""
    pins: dict[str, list[tuple[Version, int]]] = {}
    for block in re.split(r"\n(?=[^\s#])", LOCK):
        pin = re.match(r"([\w.-]+)==(\S+)", block)
        if pin:
            hashes = re.findall(r"--hash=sha256:[0-9a-f]{64}\b", block)
            pins.setdefault(canonicalize_name(pin[1]), []).append((Version(pin[2]), len(hashes)))
    return pins


def test_every_line_of_the_lock_belongs_to_a_pin() -> None:
    strangers = [
        line for line in LOCK.splitlines() if not re.match(r"[\w.-]+==\S+ (;.*)?\\$|    (--hash=|# )|#|\s*$", line)
    ]
    assert not strangers, f"neither a pin, a hash nor a comment (run `make lock`): {strangers}"


def test_every_pin_has_hashes() -> None:
    assert len(locked()) > len(declared()["."])
    bare = [name for name, pins in locked().items() if any(hashes == 0 for _, hashes in pins)]
    assert not bare, f"pinned without a hash (run `make lock`): {bare}"


def test_the_lock_names_no_host_and_no_path() -> None:
    prose = re.sub(r"--hash=\S+", "", LOCK)
    named = re.findall(r"\S*(?:://|@ |--index-url|--find-links|(?<![\w.])/\w)\S*", prose)
    assert not named, f"host or path in requirements.lock (run `make lock`): {named}"


@pytest.mark.parametrize("folder", [".", *DISTRIBUTIONS])
def test_the_lock_satisfies_every_manifest(folder: str) -> None:
    own = {canonicalize_name(manifest(name)["project"]["name"]) for name in DISTRIBUTIONS}
    pins = locked()
    # The lock has no torch on purpose: it is for one policy alone, and in the build of its machine.
    requirements = [need for need in declared()[folder] if canonicalize_name(need.name) not in {*own, "torch"}]
    stale = [
        str(need)
        for need in requirements
        if not any(need.specifier.contains(version) for version, _ in pins.get(canonicalize_name(need.name), ()))
    ]
    assert not stale, f"{folder}/pyproject.toml asks for what requirements.lock lacks (run `make lock`): {stale}"
    assert own.isdisjoint(pins), "workspace members are installed from the tree, not from the lock"
    assert "torch" not in pins


def test_the_distributions_share_one_version_and_pin_each_other_to_it() -> None:
    versions = {manifest(folder)["project"]["version"] for folder in DISTRIBUTIONS}
    assert len(versions) == 1
    own = {canonicalize_name(manifest(folder)["project"]["name"]) for folder in DISTRIBUTIONS}
    siblings = [need for folder in DISTRIBUTIONS for need in declared()[folder] if canonicalize_name(need.name) in own]
    assert siblings
    assert {str(need.specifier) for need in siblings} == {f"=={versions.pop()}"}


def test_the_changelog_has_a_section_for_unreleased_work_or_this_version() -> None:
    sections = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert sections[0] in {"Unreleased", manifest("common")["project"]["version"]}


def too_long(modules: list[Path]) -> dict[str, int]:
    """Modules with more lines than one may have, and how many they have."""
    lengths = {str(module): len((ROOT / module).read_text().splitlines()) for module in modules}
    return {module: lines for module, lines in lengths.items() if lines > LONGEST_MODULE}


def test_modules_are_small() -> None:
    assert len(MODULES) > len(DISTRIBUTIONS)
    assert too_long(MODULES) == {}, "more than one noun: split it"


def test_no_class_name_means_two_things() -> None:
    homes: dict[str, list[str]] = {}
    for module in MODULES:
        for node in ast.walk(ast.parse((ROOT / module).read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(str(module))
    assert {name: found for name, found in homes.items() if len(found) > 1} == {}


def test_test_modules_are_small() -> None:
    assert Path(__file__).relative_to(ROOT) in TESTS
    assert too_long(TESTS) == {}, "split it by theme"


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_help_lists_every_target() -> None:
    makefile = (ROOT / "Makefile").read_text()
    phony = re.search(r"^\.PHONY: (.+)$", makefile, flags=re.MULTILINE)
    assert phony is not None
    helped = subprocess.run(["make", "help"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert {line.split()[1] for line in helped.splitlines()} == set(phony[1].split())


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
@pytest.mark.parametrize(("given", "kept"), [([], False), (["KEEP=1"], True), (["KEEP="], False)])
def test_make_demo_stays_up_where_it_is_told_to(given: list[str], kept: bool) -> None:
    done = subprocess.run(["make", "-n", "demo", *given], cwd=ROOT, check=True, capture_output=True, text=True)
    (command,) = [line for line in done.stdout.splitlines() if "rolloutpool demo" in line]
    assert ("--keep" in command) == kept


def test_the_environment_holds_none_of_our_settings() -> None:
    ours = re.compile(r"ROLLOUT|TOKENIZER_|CALCULATOR_|HF_|MAX_CONCURRENT_ROLLOUTS$|HTTP_CLIENT_TIMEOUT$")
    kept = {"HF_HUB_OFFLINE", "ROLLOUTPOOL_REQUIRE_BROWSER", "ROLLOUTPOOL_REQUIRE_TOKENIZERS"}
    assert {name for name in os.environ if ours.match(name)} <= kept
    assert os.environ["HF_HUB_OFFLINE"] == "1"
