"""A part that blocks. Generated from `aio_client.py` by `make generate`; edit that file, not this one."""

import secrets
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rolloutpool_common.protocol.batch import TrainerPorts, TrainerUrls
    from rolloutpool_trainer.client.doors import SyncDoor
    from rolloutpool_trainer.client.sync_batch import Batch


class SyncForkingClient:
    """Holds what forks add to a client."""

    def fork(
        self: "SyncDoor",
        rollout_id: str,
        turn: int,
        *,
        trainer: "TrainerUrls | TrainerPorts | Mapping[str, Any] | Sequence[str] | str",
        n: int = 1,
        seed: int | None = None,
        idempotency_key: str | None = None,
        **options: Any,
    ) -> "Batch":
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
        from rolloutpool_trainer.client.sync_batch import Batch

        key = idempotency_key or secrets.token_hex(16)
        accepted = self.ask(calls.fork(rollout_id, turn, trainer, key, {"n": n, "seed": seed, **options}))
        return Batch(self, accepted.batch_id, accepted)
