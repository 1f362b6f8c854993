"""Prints the part of requirements.lock that one image needs: the same pins, the same hashes, nothing else.

    python deploy/slice_lock.py 'rolloutpool-common[store]' rolloutpool-api uv > requirements.txt

A root is one of our distributions, with extras in brackets, or the name of a pinned package. The lock's own `# via`
notes say which package needs which; they name every parent, so a slice may hold too much, but never too little. This
script needs only the standard library, because it runs before anything is installed.
"""

import re
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
OURS = "rolloutpool-"
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)(?:\[([^\]]*)\])?")


class UnknownRoot(Exception):
    """A root that is neither one of our distributions nor a pin of the lock."""


def slice_lock(roots: Iterable[str], directory: Path = ROOT) -> str:
    """Returns the lines of the lock that these roots need, in the form that `pip install --require-hashes` takes.

    Args:
        roots: Names of our distributions (with extras in brackets) or of pinned packages.
        directory: Where requirements.lock and the folders of our distributions are.

    Raises:
        UnknownRoot: A root, or a requirement of our distributions, is not in the lock.
    """
    pins = _pins((directory / "requirements.lock").read_text())
    wanted = _wanted(roots, directory)
    if unknown := wanted - pins.keys():
        raise UnknownRoot(f"not in requirements.lock: {', '.join(sorted(unknown))}; run `make lock`")
    parents = {name: _parents(blocks) for name, blocks in pins.items()}
    while more := {name for name, above in parents.items() if above & wanted} - wanted:
        wanted |= more
    return "".join(_without_notes(block) for name in sorted(wanted) for block in pins[name])


def _pins(lock: str) -> dict[str, list[str]]:
    """Returns each name's pins; a name has several if its version differs by platform."""
    pins: dict[str, list[str]] = {}
    for block in re.split(r"\n(?=\S)", lock):
        if match := re.match(r"([\w.-]+)==", block):
            pins.setdefault(_name(match[1]), []).append(block)
    return pins


def _parents(blocks: list[str]) -> set[str]:
    """Returns which packages need this one, by its `# via NAME` notes; several names follow a bare `# via`."""
    return {_name(note) for block in blocks for note in re.findall(r"^ +# +(?:via +)?([\w.-]+)", block, re.MULTILINE)}


def _wanted(roots: Iterable[str], directory: Path) -> set[str]:
    """Returns the names that our distributions require directly, and the roots that are pinned packages themselves."""
    names: set[str] = set()
    waiting = list(roots)
    seen: set[str] = set()
    while waiting:
        root = waiting.pop()
        match = _REQUIREMENT.match(root)
        if match is None or root in seen:
            continue
        seen.add(root)
        name = _name(match[1])
        if not name.startswith(OURS):
            names.add(name)
            continue
        manifest = directory / name.removeprefix(OURS) / "pyproject.toml"
        if not manifest.is_file():
            raise UnknownRoot(f"no distribution {name} in this tree")
        project = tomllib.loads(manifest.read_text())["project"]
        waiting += project.get("dependencies", [])
        for extra in filter(None, (match[2] or "").replace(" ", "").split(",")):
            waiting += project["optional-dependencies"][extra]
    return names


def _without_notes(block: str) -> str:
    return "".join(f"{line}\n" for line in block.splitlines() if not line.lstrip().startswith("#"))


def _name(text: str) -> str:
    return re.sub(r"[-_.]+", "-", text).lower()


if __name__ == "__main__":
    try:
        print(slice_lock(sys.argv[1:]), end="")
    except UnknownRoot as error:
        sys.exit(f"slice_lock: {error}")
