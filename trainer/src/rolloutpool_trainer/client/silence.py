"""Says in the log why a batch gives no results, so that nobody has to look for it elsewhere.

1. `is_due` is asked after each request for results. It is true when no rollout has ended for `SILENT_SECONDS`, and then
   once a minute.
2. The batch's state is asked for, and `tell` warns of what keeps its rollouts from going on: a trainer that is down or
   answers with errors, or workers that are not there. Calls that only take long are no fault, and not warned of.

Python prints warnings of a logger that nobody has set up, so a policy with a bug is seen in a plain script.
"""

import logging
import time
from collections.abc import Callable

from rolloutpool_common.protocol.batch import BatchStatus
from rolloutpool_common.protocol.waiting import Waiting, WaitsFor

_log = logging.getLogger("rolloutpool_trainer.client")

SILENT_SECONDS = 10.0
AGAIN_SECONDS = 60.0


class Silence:
    """The time in which one reader of a batch got nothing."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` returns seconds; tests pass their own."""
        self._clock = clock
        self._due_at = clock() + SILENT_SECONDS

    def is_due(self, *, heard: bool) -> bool:
        """Tells whether to ask why; `heard` says that the last request brought something."""
        now = self._clock()
        if heard:
            self._due_at = now + SILENT_SECONDS
            return False
        if now < self._due_at:
            return False
        self._due_at = now + AGAIN_SECONDS
        return True

    @staticmethod
    def tell(status: BatchStatus) -> None:
        """Warns of each fault that rollouts wait for."""
        for wait in status.waiting:
            if _is_fault(wait):
                _log.warning("batch %s: %d rollouts wait: %s", status.batch_id, wait.rollouts, wait.message)


def _is_fault(wait: Waiting) -> bool:
    return wait.waits_for in (WaitsFor.TRAINER_PORT, WaitsFor.WORKER) or wait.tries > 0
