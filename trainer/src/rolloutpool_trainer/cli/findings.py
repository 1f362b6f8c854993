"""Says what `rolloutpool doctor` finds: a verdict for each check."""

from dataclasses import dataclass
from enum import StrEnum


class DoctorVerdict(StrEnum):
    """The verdict of a check."""

    OK = "ok"
    WARNING = "warning"
    """It works, but not for everybody or not well."""
    FAILED = "failed"
    """Rollouts will not run."""
    NOT_CHECKED = "not checked"
    """Nothing is known; the detail says why."""


@dataclass(frozen=True)
class DoctorFinding:
    """The outcome of one check."""

    check: str
    verdict: DoctorVerdict
    detail: str
