"""The table of all mutants: tests/mutants/README.md, written and read."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.mutants.mutant import SUBJECTS, Mutant
from tests.mutants.trial import Result, Trial

HEAD = """# Mutants of the kernel

A test that has never failed proves little. So here are {total} faults as people make them, in the code that decides
who owns a rollout and what is trained. Each is put into a copy of the tree, and the tests that hold that code are run
there. A mutant is *killed* where one of them fails, *killed by timeout* where they hang, and *alive* where all pass.

**The rule: no landing may let a mutant live that is killed today.** Who writes code of the kernel again gives the fault
its new place in `tests/mutants/mutants.toml` in the same commit, and runs

```
make mutants                              # all, ten minutes on two cores; ARGS="fence-1 echo-3" for some
make mutants ARGS="--subject journal --write tests/mutants/README.md"
```

It fails if a mutant lives that this table calls killed. On a busy machine `--limit 180` gives the tests more time than
the 60 s that a mutant has else. One that lives is a hole in the net, and stands here as one.
`tests/unit/test_mutants.py` checks that each fault still has its place in the code, and that this table has all of
them.

"""
_ROW = re.compile(rf"^\| ([\w-]+) \| (?:{'|'.join(SUBJECTS)}) \| .* \| (.*) \|$")


def read_results(path: Path) -> dict[str, str]:
    """The last cell of each row, by the mutant's id."""
    if not path.exists():
        return {}
    rows = map(_ROW.match, path.read_text().splitlines())
    return {row[1]: row[2] for row in rows if row is not None}


def result_cell(trial: Trial) -> str:
    """What the table says of one trial."""
    match trial.result:
        case Result.KILLED:
            return f"killed by `{trial.test}`"
        case Result.TIMEOUT:
            return "killed by timeout"
        case result:
            return f"**{result.value}**"


def write_table(path: Path, mutants: Sequence[Mutant], results: Mapping[str, str]) -> None:
    """Writes the document; mutants without a result are called untried."""
    lines = [HEAD.format(total=len(mutants)) + "| subject | mutants | killed | alive |", "|---|---|---|---|"]
    counts = Counter((m.subject, results.get(m.id, "").startswith("killed")) for m in mutants)
    for subject in SUBJECTS:
        killed, others = counts[subject, True], counts[subject, False]
        lines.append(f"| {subject} | {killed + others} | {killed} | {others} |")
    lines += ["", "| id | subject | fault | result |", "|---|---|---|---|"]
    for mutant in mutants:
        lines.append(f"| {mutant.id} | {mutant.subject} | {mutant.fault} | {results.get(mutant.id, '**untried**')} |")
    path.write_text("\n".join(lines) + "\n")
