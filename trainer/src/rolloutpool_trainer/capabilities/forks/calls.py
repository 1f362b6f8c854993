"""The call by which a finished rollout goes on from one of its turns."""

from collections.abc import Mapping, Sequence
from typing import Any

from rolloutpool_common.protocol.batch import BatchAccepted, TrainerPorts, TrainerUrls
from rolloutpool_trainer.client.calls import JSON, Call, json_bytes, read_model, resource, trainer_document


def fork(
    rollout_id: str,
    turn: int,
    trainer: TrainerUrls | TrainerPorts | Mapping[str, Any] | Sequence[str] | str | None,
    idempotency_key: str,
    options: Mapping[str, Any],
) -> Call[BatchAccepted]:
    """`POST /v1/rollouts/{id}/fork`; the answer is the batch of the forks, whose first sampled turn is `turn`.

    `options` are other fields of a `ForkRequest`; None stands for those that are not set.
    """
    # One URL is asked in the parent's protocol.
    place = {"server_url": trainer} if isinstance(trainer, str) else {"trainer": trainer_document(trainer)}
    fields = {"turn": turn, **place, **options}
    return Call(
        method="POST",
        path=f"{resource('rollouts', rollout_id)}/fork",
        headers={**JSON, "Idempotency-Key": idempotency_key},
        body=json_bytes({name: value for name, value in fields.items() if value is not None}),
        read=read_model(BatchAccepted),
    )
