"""The text of each Lua script: its own file, behind the shared declarations that it uses.

Redis runs a script from its first line at each call, so a shared function that a script doesn't use costs each of its
calls something: all of them together were two thirds of what a journal record costs Redis.

1. The shared files (`_prelude.lua`, `_lanes.lua`, `_usage.lua`) are split at `local` in the first column: one
   declaration each, a key's name or a function.
2. A script uses a declaration that it names, and whatever that one names in turn.
3. Its text is these declarations, in the order in which they stand in the shared files, and then its own.

    journal.lua names k_rollout and clear   ->   P, k_rollout, clear, journal.lua

A word that only looks like a declaration's name brings that one along, which does no harm; none that is used is missed.
"""

import re
from collections.abc import Mapping
from importlib.resources import files

_SHARED = ("_prelude.lua", "_lanes.lua", "_usage.lua")
_COMMENT = re.compile(r"^[ \t]*--.*\n|[ \t]--[^'\"\n]*$", re.MULTILINE)
_DECLARATION = re.compile(r"^local (?:function )?(\w+)", re.MULTILINE)
_WORD = re.compile(r"\w+")


def read_sources() -> dict[str, str]:
    """Returns the text of all scripts by their names, which are those of their files without `.lua`."""
    folder = files("rolloutpool_common.store").joinpath("scripts")
    shared = declarations("".join(folder.joinpath(name).read_text(encoding="utf-8") for name in _SHARED))
    own = {entry.name: entry.read_text(encoding="utf-8") for entry in folder.iterdir() if entry.name.endswith(".lua")}
    return {name.removesuffix(".lua"): put_together(shared, text) for name, text in own.items() if name not in _SHARED}


def declarations(text: str) -> dict[str, str]:
    """Splits Lua into its top-level declarations, by their names and without comments."""
    text = _COMMENT.sub("", text)
    starts = [*_DECLARATION.finditer(text)]
    ends = [*(found.start() for found in starts[1:]), len(text)]
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
