"""Each script carries the shared declarations that it uses, and no others."""

import re
from importlib.resources import files
from pathlib import Path

from rolloutpool_common import capabilities
from rolloutpool_common.capability import StoredCapability
from rolloutpool_common.store.script_sources import ScriptFiles, declarations, put_together, sets_of, used_by

FOLDER = files("rolloutpool_common.store").joinpath("scripts")
OWN = {e.name.removesuffix(".lua"): e.read_text() for e in FOLDER.iterdir() if re.match(r"[a-z].*\.lua", e.name)}
SHARED = declarations("".join(e.read_text() for e in sorted(FOLDER.iterdir(), key=str) if e.name.startswith("_")))

LUA_OF_CAPABILITIES = [path.read_text() for path in Path(capabilities.__path__[0]).rglob("*.lua")]

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
    used = set[str]().union(*(used_by(SHARED, text) for text in (*OWN.values(), *LUA_OF_CAPABILITIES)))
    assert SHARED.keys() - used == set()


def test_all_scripts_are_there_and_end_with_their_own_text() -> None:
    sources = ScriptFiles.read([]).sources()
    assert sources.keys() == OWN.keys()
    ends = {
        name: text.rpartition("\n-- @")[2] if "-- @on_" not in text else text.splitlines()[-1]
        for name, text in OWN.items()
    }
    assert all(sources[name].rstrip().endswith(end.rstrip()) for name, end in ends.items())


class First(StoredCapability):
    name, mark = "first", "one"


class Second(StoredCapability):
    name, mark = "second", "two"


FILES = ScriptFiles(
    first="local P = 'rp:'\nlocal function other_capabilities(b) return b .. HAVING .. #MARKS .. #USES end\n",
    last="local function finish(batch)\n  -- @on_end(batch, 1)\n  return P\nend\n",
    scripts={
        "end_one": "local others = other_capabilities('b')\nreturn finish('b')\n",
        "look": "local answer = {}\n-- @on_look(answer)\nreturn answer\n",
    },
    shared={
        "first": declarations("local function first_helper() end\nlocal function first_on_end(b) first_helper() end\n"),
        "second": declarations(
            "local function second_on_end(b) end\nlocal function second_on_look(a) end\nlocal function unused() end\n"
        ),
    },
    marks={"first": "one", "second": "two"},
)


def test_a_place_becomes_a_call_of_each_capability_that_has_the_hook_in_their_order() -> None:
    both = FILES.source("end_one", " first second")
    assert "  first_on_end(batch, 1)\n  second_on_end(batch, 1)\n  return P\n" in both
    assert both.index("local function first_helper") < both.index("local function finish")
    assert (
        "local HAVING = ' first second'\nlocal MARKS = { 'one', 'two' }\nlocal USES = { 'first', 'second' }\n" in both
    )
    assert "unused" not in both
    assert "first_" not in FILES.source("end_one", " second")


def test_a_script_about_a_batch_is_for_a_plain_one_and_the_others_have_all() -> None:
    sources = FILES.sources()
    assert "_on_end" not in sources["end_one"]
    assert "local HAVING = ''" in sources["end_one"]
    assert "second_on_look(answer)" in sources["look"]


def test_each_set_of_capabilities_has_a_name_and_the_first_is_the_plain_ones() -> None:
    assert sets_of([First(), Second()]) == ["", " first", " second", " first second"]


def test_what_runs_for_each_record_carries_three_declarations() -> None:
    assert used_by(SHARED, OWN["journal"]) == {"P", "k_rollout", "clear"}
    assert used_by(SHARED, OWN["calling"]) == {"P", "k_rollout", "epoch"}
