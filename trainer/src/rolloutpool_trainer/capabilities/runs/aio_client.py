"""The steering of runs, for asyncio. `sync_client.py` is generated from this file (`make generate`)."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rolloutpool_common.capabilities.runs.wire import RunState
    from rolloutpool_trainer.client.doors import AsyncDoor


class AsyncRunsClient:
    """Holds what runs add to a client."""

    async def run(self: "AsyncDoor", run: str) -> "RunState":
        """Asks which version a run is at, and whether it is paused; raises `NotFound`."""
        from rolloutpool_trainer.capabilities.runs import calls

        return await self.ask(calls.read(run))

    async def announce(self: "AsyncDoor", run: str, version: int | str, *, rollback: bool = False) -> "RunState":
        """Announces the version of a run's newest weights; call it when rollouts are sampled with them.

        Args:
            run: The run; it need not have a batch yet.
            version: A decimal integer.
            rollback: Whether it may be lower than the one before, because training went back to a checkpoint.

        Raises:
            RequestRefused: It is lower.
            BatchRejected: It is no decimal integer.
        """
        from rolloutpool_trainer.capabilities.runs import calls

        return await self.ask(calls.announce(run, version, rollback=rollback))

    async def pause(self: "AsyncDoor", run: str) -> "RunState":
        """Sends no further model call of a run until `resume`; those in flight go on. Its rollouts wait."""
        from rolloutpool_trainer.capabilities.runs import calls

        return await self.ask(calls.pause(run))

    async def resume(self: "AsyncDoor", run: str) -> "RunState":
        """Lets a paused run go on; raises `NotFound`."""
        from rolloutpool_trainer.capabilities.runs import calls

        return await self.ask(calls.resume(run))
