"""A mutant: one fault of the kernel, as a change of one text in one file."""

import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIST = Path(__file__).with_name("mutants.toml")
SUBJECTS = ("fence", "journal", "outbox", "places", "ledger", "echo", "verdicts", "deltas", "masks")


@dataclass(frozen=True)
class Mutant:
    """One entry of the list."""

    id: str
    subject: str
    fault: str
    """One sentence, which stays true when the code is written again."""
    file: Path
    """From the root of the tree."""
    before: str
    """Occurs exactly once in the file."""
    after: str
    tests: tuple[str, ...] = ()
    """Test modules that hold it, or single tests of slow ones; empty where the runner finds them by imports."""

    def fits(self, root: Path = ROOT) -> bool:
        """Whether its text is in the file exactly once."""
        path = root / self.file
        return path.exists() and path.read_text().count(self.before) == 1

    def apply(self, root: Path) -> None:
        """Writes the fault into a copy of the tree; the file may be a hard link, so it is replaced and not changed."""
        path = root / self.file
        text = path.read_text().replace(self.before, self.after)
        path.unlink()
        path.write_text(text)
        # Python takes bytecode for current where time and size of its source agree, and both may.
        for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
            compiled.unlink()


def read_mutants() -> list[Mutant]:
    """Reads the list, in its order."""
    return [
        Mutant(
            id=entry["id"],
            subject=entry["subject"],
            fault=entry["fault"],
            file=Path(entry["file"]),
            before=entry["before"],
            after=entry["after"],
            tests=tuple(entry.get("tests", ())),
        )
        for entry in tomllib.loads(LIST.read_text())["mutant"]
    ]
