"""A part that blocks. Generated from `aio_batch.py` by `make generate`; edit that file, not this one."""

import secrets
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rolloutpool_common.capabilities.grading.regrading import Regrade
    from rolloutpool_trainer.client.sync_door import SyncDoor


class SyncGradedBatch:
    """Holds what grading adds to a batch."""

    batch_id: str
    _client: "SyncDoor"

    def regrade(
        self,
        grader: str,
        options: Any = None,
        *,
        rollouts: Sequence[int | str] | None = None,
        annotation: str = "reward",
        wait: bool = True,
        **choice: Any,
    ) -> "Regrade":
        """Has ended rollouts graded again, without sampling. Grades become annotations; delivered results stay.

        Args:
            grader: As workers announce it.
            options: For the grader.
            rollouts: Uids or indexes; None takes the whole batch.
            annotation: The name under which rewards are kept.
            wait: Return when all are done, and not at once.
            **choice: `deadline_seconds` and `retries`, for each rollout.

        Returns:
            What became of it.

        Raises:
            BatchRejected: Something is wrong; `faults` lists all of it.
        """
        from rolloutpool_common.capabilities.grading.regrading import RegradeRequest, RegradeState
        from rolloutpool_common.capabilities.grading.wire import GraderChoice
        from rolloutpool_trainer.capabilities.grading import calls
        from rolloutpool_trainer.client.retry import status_delays

        request = RegradeRequest(
            grader=GraderChoice(name=grader, options=options, **choice),
            rollouts=None if rollouts is None else list(rollouts),
            annotation=annotation,
        )
        found = self._client.ask(calls.regrade(self.batch_id, request, secrets.token_hex(8)))
        delays = status_delays()
        while wait and found.state is RegradeState.RUNNING:
            time.sleep(next(delays))
            found = self._client.ask(calls.regrade_state(self.batch_id, found.regrade_id))
        return found
