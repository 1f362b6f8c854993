"""The list of mutants fits the code, and its table has all of them with what became of each."""

import re
from collections import Counter
from pathlib import Path

import pytest
from tests.mutants.mutant import ROOT, SUBJECTS, Mutant, read_mutants
from tests.mutants.selection import selected_tests
from tests.mutants.table import read_results, write_table

MUTANTS = read_mutants()
DOCUMENT = ROOT / "docs" / "mutants.md"
RESULT = re.compile(r"killed by `tests/\S+\.py(::\w+)*`|killed by timeout|\*\*alive\*\*")


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.id)
def test_each_has_its_place_in_the_code(mutant: Mutant) -> None:
    assert mutant.fits(), f"give the fault its new place in tests/mutants/mutants.toml: {mutant.fault}"
    assert mutant.after != mutant.before
    assert selected_tests(mutant), "no test imports its module: name its tests"
    assert [test for test in mutant.tests if not (ROOT / test.partition("::")[0]).is_file()] == []


def test_ids_are_unique_and_all_subjects_have_some() -> None:
    assert [name for name, n in Counter(mutant.id for mutant in MUTANTS).items() if n > 1] == []
    assert {mutant.subject for mutant in MUTANTS} == set(SUBJECTS)


def test_the_table_is_what_the_runner_writes_of_the_list(tmp_path: Path) -> None:
    results = read_results(DOCUMENT)
    assert list(results) == [mutant.id for mutant in MUTANTS], "run `make mutants` with these ids and --write"
    assert {name: result for name, result in results.items() if not RESULT.fullmatch(result)} == {}
    write_table(tmp_path / "mutants.md", MUTANTS, results)
    assert (tmp_path / "mutants.md").read_text() == DOCUMENT.read_text()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.id)
def test_what_has_killed_it_is_still_there(mutant: Mutant) -> None:
    killed = re.search(r"`(tests/\S+?\.py)(?:::([\w:]+))?`", read_results(DOCUMENT)[mutant.id])
    if killed is not None:
        name = (killed[2] or "").rpartition(":")[2]
        assert (ROOT / killed[1]).is_file(), f"{killed[0]} is gone: run the mutant again"
        assert re.search(rf"\b{name}\b", (ROOT / killed[1]).read_text()), f"{killed[0]} is gone: run the mutant again"
