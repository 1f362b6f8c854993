"""What grading adds to clients, batches and groups, for asyncio. `sync.py` is generated from this file."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rolloutpool_common.capabilities.grading.annotating import GroupStatistics, Regrade, RolloutAnnotations
    from rolloutpool_trainer.client.doors import AsyncDoor
    from rolloutpool_trainer.client.results import FinishedRollout


class AsyncGradedClient:
    """Holds what grading adds to a client."""

    async def annotations(self: "AsyncDoor", uid: str) -> "RolloutAnnotations":
        """Asks for the annotations of one rollout, also those per token. Takes the uid only."""
        from rolloutpool_trainer.capabilities.grading import calls

        return await self.ask(calls.annotations(uid))


class AsyncGradedBatch:
    """Holds what grading adds to a batch."""

    batch_id: str
    _client: "AsyncDoor"

    async def regrade(
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
        from rolloutpool_common.capabilities.grading.annotating import RegradeRequest, RegradeState
        from rolloutpool_common.capabilities.grading.wire import GraderChoice
        from rolloutpool_trainer.capabilities.grading import calls
        from rolloutpool_trainer.client.retry import status_delays

        request = RegradeRequest(
            grader=GraderChoice(name=grader, options=options, **choice),
            rollouts=None if rollouts is None else list(rollouts),
            annotation=annotation,
        )
        found = await self._client.ask(calls.regrade(self.batch_id, request))
        delays = status_delays()
        while wait and found.state is RegradeState.RUNNING:
            await asyncio.sleep(next(delays))
            found = await self._client.ask(calls.regrade_state(self.batch_id, found.regrade_id))
        return found

    async def annotate(
        self,
        scalars: Mapping[str, Mapping[int | str, float]] | None = None,
        *,
        streams: Mapping[str, Mapping[int | str, Sequence[Sequence[float | None]]]] | None = None,
    ) -> None:
        """Adds rewards and other figures to rollouts, for people to look at. A later value wins.

        Args:
            scalars: By name, then by uid or index: `{"reward": {0: 1.0}}`.
            streams: Likewise, a list for each sample, as long as its `response_ids`: `{"advantage": {0: [[…]]}}`.

        Raises:
            BatchRejected: Something is wrong; `faults` lists all of it.
            RequestRefused: They would take more memory than a batch's annotations may.
        """
        from rolloutpool_trainer.capabilities.grading import calls

        for call in calls.annotate(self.batch_id, scalars or {}, streams or {}):
            await self._client.ask(call)

    async def group_statistics(self, of: str = "reward") -> "list[GroupStatistics]":
        """Asks for size and length of each group, and for the spread of an annotation in it, in order of name."""
        from rolloutpool_trainer.capabilities.grading import calls

        return (await self._client.ask(calls.group_statistics(self.batch_id, of))).groups


class AsyncGradedGroup:
    """Holds what grading adds to a group."""

    __slots__ = ()

    if TYPE_CHECKING:
        name: str
        rollouts: tuple[FinishedRollout, ...]
        _client: AsyncDoor

    async def annotate(self, rewards: Sequence[float], name: str = "reward") -> None:
        """Keeps what the group's rollouts are worth, for people to look at; a later value wins.

        Args:
            rewards: [n], one for each of `rollouts`, in their order; finite.
            name: Of the figure; lists compare groups by `reward`.

        Raises:
            ValueError: There is another number of rewards than of rollouts.
            BatchRejected: One is not finite, or the name is none; `faults` lists all of it.
            RequestRefused: They would take more memory than a batch's annotations may.
        """
        from rolloutpool_trainer.capabilities.grading import calls

        if len(rewards) != len(self.rollouts):
            raise ValueError(f"group {self.name} has {len(self.rollouts)} rollouts, not {len(rewards)}")
        # Rollouts that were run again are in batches of their own.
        batches: dict[str, dict[int | str, float]] = {}
        for rollout, reward in zip(self.rollouts, rewards, strict=True):
            batches.setdefault(rollout.batch_id, {})[rollout.index] = float(reward)
        for batch_id, values in batches.items():
            for call in calls.annotate(batch_id, {name: values}, {}):
                await self._client.ask(call)
