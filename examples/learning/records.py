"""What a run leaves behind: one JSON file, written when it has ended, so that a later call leaves the run out.

Several runs of an arm, one per seed, are put together as mean and 95 % confidence interval (Student's t). With three
seeds it is wide, and that is what is known then.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

# Of the t distribution, two-sided, by degrees of freedom.
_T95 = (math.inf, 12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean with half the width of its confidence interval; infinite for a single run."""

    mean: float
    half: float

    def __str__(self) -> str:
        return f"{self.mean:.2f}" if math.isinf(self.half) else f"{self.mean:.2f} ± {self.half:.2f}"


@dataclass(slots=True)
class Run:
    """One arm with one seed."""

    arm: str
    seed: int
    settings: dict[str, Any]
    """What must be equal for a run to count as the same."""
    steps: dict[str, list[float]] = field(default_factory=dict)
    """By name, one figure per step."""
    totals: dict[str, float] = field(default_factory=dict)
    """Sums, and the worst difference of log-probabilities."""
    kills: list[str] = field(default_factory=list)
    """What was killed, and at which step."""

    @property
    def file(self) -> str:
        """Its file's name."""
        return f"{self.arm}-{self.seed}{'-killed' if self.settings.get('kill') else ''}.json"

    def add(self, figures: Mapping[str, float]) -> None:
        """Appends a step."""
        for name, value in figures.items():
            self.steps.setdefault(name, []).append(round(value, 6))

    def write(self, folder: Path) -> None:
        """Writes it; a run is there whole or not at all."""
        folder.mkdir(parents=True, exist_ok=True)
        part = folder / f"{self.file}.part"
        part.write_text(json.dumps(asdict(self)) + "\n")
        part.rename(folder / self.file)


def wanted(run: Run, folder: Path) -> bool:
    """Tells whether a run is still to be made: there is none of its name, or it had other settings."""
    path = folder / run.file
    if not path.exists():
        return True
    kept = Run(**json.loads(path.read_text()))
    return kept.settings != run.settings


def read_runs(folder: Path) -> list[Run]:
    """Reads all runs of a folder, in order of name."""
    return [Run(**json.loads(path.read_text())) for path in sorted(folder.glob("*.json"))]


def published(runs: Sequence[Run]) -> str:
    """Makes the one file that is kept in the repository, a line per run."""
    return "[\n" + ",\n".join(json.dumps(asdict(run)) for run in runs) + "\n]\n"


def read_published(path: Path) -> list[Run]:
    """Reads what `published` made."""
    return [Run(**document) for document in json.loads(path.read_text())]


def estimate(values: Sequence[float]) -> Estimate:
    """Puts one figure per seed together."""
    n = len(values)
    quantile = _T95[min(n - 1, len(_T95) - 1)]
    return Estimate(fmean(values), math.inf if n < 2 else quantile * stdev(values) / math.sqrt(n))


def final(run: Run) -> float:
    """A run's result: which share of the questions after the last step it solved."""
    return run.totals["solved after"]


def overall(run: Run, name: str = "solved") -> float:
    """The mean over the whole run; it says how fast it was."""
    return fmean(run.steps[name])
