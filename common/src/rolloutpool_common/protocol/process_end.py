"""How a worker's process ended, as its parent saw it, and whether a rollout may have been the cause.

| end | text | a rollout may be the cause |
|---|---|---|
| it stopped as it was told | `stopped` | no |
| SIGKILL, and the kernel did not report a lack of memory | `killed` | no: somebody or something outside |
| SIGKILL for lack of memory | `oom` | yes |
| another signal, for instance 11 | `signal:11` | yes |
| an exit code that nothing asked for, for instance 70 | `exit:70` | yes |

The text is what stands in Redis between the parent's report and the reconciler's next look.
"""

import signal
from dataclasses import dataclass
from enum import StrEnum


class EndCause(StrEnum):
    """Says what ended a process."""

    STOPPED = "stopped"
    """It was told to stop, and did."""
    KILLED = "killed"
    """SIGKILL, whose sender is not known."""
    OOM = "oom"
    """SIGKILL by the kernel, because memory was short."""
    SIGNAL = "signal"
    EXIT = "exit"
    """By itself, with an exit code."""


@dataclass(frozen=True)
class ProcessEnd:
    """How one process ended."""

    cause: EndCause
    number: int | None = None
    """The signal or the exit code, for these two causes."""

    @classmethod
    def of(cls, returncode: int, *, told_to_stop: bool = False, oom: bool = False) -> "ProcessEnd":
        """Reads what the operating system told the parent."""
        if returncode == -signal.SIGKILL:
            return cls(EndCause.OOM if oom else EndCause.KILLED)
        # A process that has not installed its handler yet ends by the very signal.
        if returncode == -signal.SIGTERM or (returncode == 0 and told_to_stop):
            return cls(EndCause.STOPPED)
        return cls(EndCause.SIGNAL, -returncode) if returncode < 0 else cls(EndCause.EXIT, returncode)

    @classmethod
    def parse(cls, text: str) -> "ProcessEnd":
        """Reads what `str` wrote; raises `ValueError` for anything else."""
        cause, colon, number = text.partition(":")
        return cls(EndCause(cause), int(number) if colon else None)

    def __str__(self) -> str:
        return self.cause if self.number is None else f"{self.cause}:{self.number}"

    @property
    def suspicious(self) -> bool:
        """Whether a rollout of that process may be the cause."""
        # Exit code 0 without an order: a tool may have ended the process.
        return self.cause in (EndCause.OOM, EndCause.SIGNAL, EndCause.EXIT)
