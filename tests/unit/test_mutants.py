"""The list of mutants fits the code, and its table has all of them with what became of each."""

import re
from collections import Counter
from pathlib import Path

from tests.mutants.mutant import ROOT, SUBJECTS, read_mutants
from tests.mutants.selection import selected_tests
from tests.mutants.table import read_results, write_table

MUTANTS = read_mutants()
DOCUMENT = ROOT / "tests" / "mutants" / "README.md"
RESULT = re.compile(r"killed by `tests/\S+\.py(::\w+)*`|killed by timeout|\*\*alive\*\*")


def test_each_has_its_place_in_the_code() -> None:
    homeless = {mutant.id: mutant.fault for mutant in MUTANTS if not mutant.fits() or mutant.after == mutant.before}
    assert homeless == {}, "give these faults their new places in tests/mutants/mutants.toml"
    untested = [mutant.id for mutant in MUTANTS if not selected_tests(mutant)]
    assert untested == [], "no test imports their module: name their tests"
    named = {test.partition("::")[0] for mutant in MUTANTS for test in mutant.tests}
    assert [test for test in named if not (ROOT / test).is_file()] == []


def test_ids_are_unique_and_all_subjects_have_some() -> None:
    assert [name for name, n in Counter(mutant.id for mutant in MUTANTS).items() if n > 1] == []
    assert {mutant.subject for mutant in MUTANTS} == set(SUBJECTS)


def test_the_table_is_what_the_runner_writes_of_the_list(tmp_path: Path) -> None:
    results = read_results(DOCUMENT)
    assert list(results) == [mutant.id for mutant in MUTANTS], "run `make mutants` with these ids and --write"
    assert {name: result for name, result in results.items() if not RESULT.fullmatch(result)} == {}
    write_table(tmp_path / "mutants.md", MUTANTS, results)
    assert (tmp_path / "mutants.md").read_text() == DOCUMENT.read_text()


def test_what_has_killed_it_is_still_there() -> None:
    gone = []
    for name, result in read_results(DOCUMENT).items():
        killed = re.search(r"`(tests/\S+?\.py)(?:::([\w:]+))?`", result)
        if killed is not None:
            module, test = ROOT / killed[1], (killed[2] or "").rpartition(":")[2]
            if not module.is_file() or not re.search(rf"\b{test}\b", module.read_text()):
                gone.append((name, killed[0]))
    assert gone == [], "run these mutants again"
