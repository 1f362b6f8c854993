"""The templates that are played: families of our own, real tokenizers, and published templates.

- `families`: one for each construct, over a tiny tokenizer (tests/property and `families`).
- `golden`: the tokenizers and templates to which the golden cases belong (`make tokenizers`).
- `real`: published templates, laid over a tokenizer that fits (`make templates`).
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.oracle.conversations import Player
from tests.oracle.referee import Ends, Referee
from tests.property.families import FAMILIES, lay_out
from tests.property.odd_families import ODD, lay_out_models
from tests.property.rare_families import RARE
from tests.property.wild_families import WILD
from tests.tokenizers.layout import BUILD, SHA256, TEMPLATE_BUILD, TEMPLATES, TINY
from tests.tokenizers.published import PUBLISHED

SETS = ("families", "golden", "real")
_FOREIGN = "<|endoftext|>"
"""It ends turns of many models whose template writes something else."""


@dataclass(frozen=True)
class Entry:
    """One template on disk, with what is known of it by hand."""

    name: str
    directory: Path
    ends: Ends | None = None
    needs_tools: bool = False
    kwargs: Mapping[str, Any] = field(default_factory=dict)


def entries(which: str) -> Iterator[Entry]:
    """The templates of a set, or of `all`, that are on disk."""
    for name in SETS if which == "all" else (which,):
        yield from _families() if name == "families" else _golden() if name == "golden" else _real()


def player(entry: Entry) -> Player:
    """Loads a template for play."""
    referee = Referee(entry.name, entry.directory, entry.ends)
    settings = entry.directory / "generation_config.json"
    stops = json.loads(settings.read_text(encoding="utf-8"))["eos_token_id"] if settings.is_file() else []
    own = [text for text, token in referee.encoder.control_ids.items() if token in stops]
    foreign = [t for t in dict.fromkeys((_FOREIGN, referee.eos, *own)) if t in referee.encoder.control_ids]
    return Player(referee, entry.kwargs, entry.needs_tools, referee.ends_by_hand, foreign)


@cache
def _folder() -> TemporaryDirectory[str]:
    """A folder of this process, because the tests of several processes lay out families at once."""
    return TemporaryDirectory(prefix="rolloutpool-families-")


@cache
def _families() -> tuple[Entry, ...]:
    return tuple(_laid_out())


def _laid_out() -> Iterator[Entry]:
    families = {**FAMILIES, **WILD, **RARE, **ODD}
    folder = Path(_folder().name)
    for name, directory in lay_out(folder, families):
        family = families[name.removeprefix("family:")]
        kwargs = getattr(family, "kwargs", {})
        yield Entry(name, directory, (family.answer_ends, family.call_ends), family.needs_tools, kwargs)
    yield from (Entry(*model) for model in lay_out_models(folder))


def _golden() -> Iterator[Entry]:
    places = {"tiny": TINY} | {name: BUILD / name for name in sorted(SHA256) if name != "yi"}
    places |= {f"template:{name}": TEMPLATE_BUILD / name for name in sorted(TEMPLATES)}
    yield from (Entry(name, path) for name, path in places.items() if (path / "tokenizer.json").is_file())


def _real() -> Iterator[Entry]:
    for path in sorted(PUBLISHED.iterdir()) if PUBLISHED.is_dir() else ():
        if (path / "tokenizer.json").is_file():
            yield Entry(f"real:{path.name}", path)
