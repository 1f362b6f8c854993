"""Each script carries the shared declarations that it uses, and no others."""

import re
from importlib.resources import files

from rolloutpool_common.store.script_sources import declarations, put_together, read_sources, used_by

FOLDER = files("rolloutpool_common.store").joinpath("scripts")
OWN = {e.name.removesuffix(".lua"): e.read_text() for e in FOLDER.iterdir() if re.match(r"[a-z].*\.lua", e.name)}
SHARED = declarations("".join(e.read_text() for e in sorted(FOLDER.iterdir(), key=str) if e.name.startswith("_")))

LUA = """-- k_b is no use of it
local P = 'rp:'
local function k_a(x) return P .. x end  -- not k_c
-- what k_c is
local function k_c(x)
  return k_a(x)
end
local function k_d() return 1 end
"""


def test_a_text_is_split_into_its_declarations_without_comments() -> None:
    assert declarations(LUA) == {
        "P": "local P = 'rp:'\n",
        "k_a": "local function k_a(x) return P .. x end\n",
        "k_c": "local function k_c(x)\n  return k_a(x)\nend\n",
        "k_d": "local function k_d() return 1 end\n",
    }


def test_a_script_gets_what_it_names_and_what_that_names_in_their_order() -> None:
    shared = declarations(LUA)
    assert used_by(shared, "return k_c(1) -- k_d") == {"P", "k_a", "k_c"}
    assert put_together(shared, "return k_c(1)") == shared["P"] + shared["k_a"] + shared["k_c"] + "return k_c(1)"


def test_no_shared_declaration_is_unused() -> None:
    used = set[str]().union(*(used_by(SHARED, text) for text in OWN.values()))
    assert SHARED.keys() - used == set()


def test_all_scripts_are_there_and_end_with_their_own_text() -> None:
    sources = read_sources()
    assert sources.keys() == OWN.keys()
    assert all(sources[name].endswith(text) for name, text in OWN.items())


def test_what_runs_for_each_record_carries_three_declarations() -> None:
    assert used_by(SHARED, OWN["journal"]) == {"P", "k_rollout", "clear"}
    assert used_by(SHARED, OWN["calling"]) == {"P", "k_rollout"}
