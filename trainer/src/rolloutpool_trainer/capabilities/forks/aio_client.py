"""Forks of a rollout, for asyncio. `sync_client.py` is generated from this file (`make generate`)."""

import secrets
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rolloutpool_common.protocol.batch import TrainerPorts, TrainerUrls
    from rolloutpool_trainer.client.aio_batch import AsyncBatch
    from rolloutpool_trainer.client.doors import AsyncDoor


class AsyncForkingClient:
    """Holds what forks add to a client."""

    async def fork(
        self: "AsyncDoor",
        rollout_id: str,
        turn: int,
        *,
        trainer: "TrainerUrls | TrainerPorts | Mapping[str, Any] | Sequence[str] | str",
        n: int = 1,
        seed: int | None = None,
        idempotency_key: str | None = None,
        **options: Any,
    ) -> "AsyncBatch":
        """Goes on from a turn of a finished rollout, with the same tokens before it.

        Args:
            rollout_id: Of the parent: its uid, or the caller's own id.
            turn: The first turn that is sampled anew, from 1.
            trainer: Where the policy is called: one URL in the parent's protocol, or as for `submit`.
            n: How many forks; several are a group.
            seed: Of the first fork's sampling; the next ones count on from it.
            idempotency_key: As for `submit`.
            options: Other fields of `rolloutpool_common.capabilities.forks.wire.ForkRequest`, such as a
                `callback_api_key`.

        Returns:
            The batch of the forks.

        Raises:
            BatchRejected: The turn is past the end, or something else in the request is wrong.
            RequestRefused: The rollout has not ended, or cannot be continued.
            IdempotencyConflict: The key was used for other forks.
        """
        from rolloutpool_trainer.capabilities.forks import calls
        from rolloutpool_trainer.client.aio_batch import AsyncBatch

        key = idempotency_key or secrets.token_hex(16)
        accepted = await self.ask(calls.fork(rollout_id, turn, trainer, key, {"n": n, "seed": seed, **options}))
        return AsyncBatch(self, accepted.batch_id, accepted)
