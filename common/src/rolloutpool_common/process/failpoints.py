"""Failpoints: named lines at which a process kills itself as kill -9 would, so that tests can crash it exactly there.

They do nothing unless ROLLOUTPOOL_FAILPOINTS is set when the process starts. `name:0.01` kills it with this
probability at each pass, `name:3` at the third pass; several are separated by commas. Never set it in production.

api.commit_before_answer      a batch is committed, its 202 is not sent
worker.reply_before_turn      the trainer has answered, the turn is not in the journal
worker.turn_before_tools      the turn is in the journal, its tools have not run
worker.obs_before_call        the observation is in the journal, the next turn is not asked for
worker.kept_before_grade      a conversation is complete and kept, its grader is not asked
worker.grades_before_delivery the grades of a group are kept, its other members are not delivered
worker.finish_before_ack      the result is stored, the ticket is not acknowledged
delivery.pushed_before_mark   the receiver has taken a result, the pool has not noted it
"""

import os
import random
import signal
from collections.abc import Callable

VARIABLE = "ROLLOUTPOOL_FAILPOINTS"
NAMES = frozenset(
    {
        "api.commit_before_answer",
        "worker.reply_before_turn",
        "worker.turn_before_tools",
        "worker.obs_before_call",
        "worker.kept_before_grade",
        "worker.grades_before_delivery",
        "worker.finish_before_ack",
        "delivery.pushed_before_mark",
    }
)


def _parse(text: str) -> dict[str, float] | None:
    armed = {}
    for part in filter(None, text.split(",")):
        name, _, when = part.strip().partition(":")
        if name not in NAMES:
            raise ValueError(f"{VARIABLE}: no failpoint {name!r}; there are {sorted(NAMES)}")
        armed[name] = float(when)
    return armed or None


_ARMED = _parse(os.environ.get(VARIABLE, ""))
_passes: dict[str, int] = {}
_watchers: list[Callable[[str], None]] = []


def watch(*watchers: Callable[[str], None]) -> None:
    """Has each pass of each failpoint told to these, and no longer to those of an earlier call.

    Where several workers live in one process, a watcher ends the one that passes: the process is not its own.
    """
    _watchers[:] = watchers


def hit(name: str) -> None:
    """Pass a failpoint. Does not return if the failpoint is armed and this is the pass to end at."""
    for watcher in _watchers:
        watcher(name)
    if _ARMED is None:
        return
    when = _ARMED.get(name)
    if when is None:
        return
    _passes[name] = _passes.get(name, 0) + 1
    if (random.random() < when) if when < 1 else (_passes[name] == when):
        # Written directly, because a logger may buffer, and the process ends now.
        os.write(2, f"failpoint {name}\n".encode())
        os.kill(os.getpid(), signal.SIGKILL)
