"""The text of each Lua script: its own file, behind the shared declarations that it uses.

Redis runs a script from its first line at each call, so a shared function that a script doesn't use costs each of its
calls something: all of them together were two thirds of what a journal record costs Redis.

1. The shared files (`_prelude.lua`, `_lanes.lua`, `_usage.lua`, `_end.lua`) are split at `local` in the first column:
   one declaration each, a key's name or a function.
2. A script uses a declaration that it names, and whatever that one names in turn.
3. Its text is these declarations, in the order in which they stand in the shared files, and then its own.

    journal.lua names k_rollout and clear   ->   P, k_rollout, clear, journal.lua

A word that only looks like a declaration's name brings that one along, which does no harm; none that is used is missed.

Capabilities (`capability.py`) have scripts of their own, and take part in the kernel's:

4. A line `-- @on_end(batch, uid, …)` is a place for them. There stands then a call `{name}_on_end(batch, uid, …)`
   for each capability whose shared file (`_{name}.lua`) declares such a function, in the order of the capabilities.
5. A script that asks `other_capabilities` is about one batch, and has one text for each set of capabilities. Into it go
   those that the batch uses; the text for a plain batch has nothing of any. Every other script is the pool's, and has
   all of them.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from itertools import combinations
from typing import Self

from rolloutpool_common.capability import StoredCapability

_FIRST, _LAST = ("_prelude.lua", "_lanes.lua", "_usage.lua"), ("_end.lua",)
_COMMENT = re.compile(r"^[ \t]*--.*\n|[ \t]--[^'\"\n]*$", re.MULTILINE)
_DECLARATION = re.compile(r"^local (?:function )?(\w+)", re.MULTILINE)
_WORD = re.compile(r"\w+")
_PLACE = re.compile(r"^([ \t]*)-- @(on_\w+)(\(.*\))\n", re.MULTILINE)
_OF_BATCH = "other_capabilities"


@dataclass(frozen=True)
class ScriptFiles:
    """All Lua of a build: the kernel's, and that of its capabilities, in their order."""

    first: str
    last: str
    scripts: Mapping[str, str]
    """By name, those of capabilities too."""
    shared: Mapping[str, Mapping[str, str]]
    """Of each capability the declarations that its scripts share, and its part in the kernel's."""
    marks: Mapping[str, str]
    """The field of a batch's hash that says that the batch uses a capability."""

    @classmethod
    def read(cls, capabilities: Sequence[StoredCapability]) -> Self:
        """Reads them from where they are installed."""
        kernel = _lua_of(files("rolloutpool_common.store"))
        scripts, shared = dict(kernel), dict[str, Mapping[str, str]]()
        for capability in capabilities:
            own = _lua_of(files(f"rolloutpool_common.capabilities.{capability.name}"))
            shared[capability.name] = declarations(own.get(f"_{capability.name}.lua", ""))
            scripts |= own
        return cls(
            first="".join(kernel[name] for name in _FIRST),
            last="".join(kernel[name] for name in _LAST),
            scripts={name.removesuffix(".lua"): text for name, text in scripts.items() if not name.startswith("_")},
            shared=shared,
            marks={capability.name: capability.mark for capability in capabilities if capability.mark},
        )

    def sources(self) -> dict[str, str]:
        """Returns the text of each script by its name: of one that is about a batch, the text for a plain batch."""
        everything = used_names(self.shared)
        return {name: self.source(name, "" if _OF_BATCH in text else everything) for name, text in self.scripts.items()}

    def source(self, name: str, used: str) -> str:
        """Returns the text of a script that has these capabilities: each of their names behind a blank."""
        having = used.split()
        added = {name: text for one in having for name, text in self.shared[one].items()}
        shared = {
            **declarations(self._filled(self.first, having)),
            "HAVING": f"local HAVING = '{used}'\n",
            "MARKS": f"local MARKS = {{ {_quoted(self.marks.values())} }}\n",
            "USES": f"local USES = {{ {_quoted(self.marks)} }}\n",
        }
        # `other_capabilities` names the three above.
        shared[_OF_BATCH] = shared.pop(_OF_BATCH)
        shared |= {**added, **declarations(self._filled(self.last, having))}
        return put_together(shared, self._filled(self.scripts[name], having))

    def _filled(self, text: str, having: Sequence[str]) -> str:
        """Puts calls into the places for capabilities."""

        def calls(place: re.Match[str]) -> str:
            indent, hook, arguments = place.groups()
            functions = [f"{name}_{hook}" for name in having]
            known = [
                function for name, function in zip(having, functions, strict=True) if function in self.shared[name]
            ]
            return "".join(f"{indent}{function}{arguments}\n" for function in known)

        return _PLACE.sub(calls, text)


def used_names(names: Iterable[str]) -> str:
    """Writes the names of capabilities as scripts do: each behind a blank."""
    return "".join(f" {name}" for name in names)


def sets_of(capabilities: Sequence[StoredCapability]) -> list[str]:
    """Returns each set of capabilities that a batch may use, as scripts name it; the first is the plain batch's."""
    names = [capability.name for capability in capabilities if capability.mark]
    return [used_names(some) for size in range(len(names) + 1) for some in combinations(names, size)]


def declarations(text: str) -> dict[str, str]:
    """Splits Lua into its top-level declarations, by their names and without comments."""
    text = _COMMENT.sub("", text)
    starts = [*_DECLARATION.finditer(text)]
    ends = [*(found.start() for found in starts), len(text)][1:]
    return {found[1]: text[found.start() : end].rstrip() + "\n" for found, end in zip(starts, ends, strict=True)}


def used_by(shared: Mapping[str, str], text: str) -> set[str]:
    """Returns the names of the shared declarations that a text uses, directly or by another of them."""
    used: set[str] = set()
    left = [text]
    while left:
        new = (shared.keys() & set(_WORD.findall(_COMMENT.sub("", left.pop())))) - used
        used |= new
        left += [shared[name] for name in new]
    return used


def put_together(shared: Mapping[str, str], text: str) -> str:
    """Returns a script's text behind the declarations that it uses."""
    used = used_by(shared, text)
    return "".join(declaration for name, declaration in shared.items() if name in used) + text


def _lua_of(package: Traversable) -> dict[str, str]:
    """Reads the Lua of a package, by the names of its files."""
    folder = package.joinpath("scripts")
    if not folder.is_dir():
        return {}
    return {one.name: one.read_text(encoding="utf-8") for one in folder.iterdir() if one.name.endswith(".lua")}


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)
