"""Holds what a trainer imports: clients of the pool, a local pool, and the endpoint that the pool calls for each turn.

The packages:

- `client` has the two clients of the pool's API, and checks pushed results.
- `endpoint` answers the pool's calls: it samples, and keeps each conversation's token ids.
- `local` runs a whole pool on this machine.
- `adapters` drives a pool from inside other trainers: TRL, verl, slime, SkyRL, AReaL, OpenRLHF, verifiers, NeMo Gym.
- `viewer` shows where each token of a result came from.
- `cli` is the `rolloutpool` command.
- `testing` has a scripted policy; `errors` lists what can go wrong.

All public names can be imported from here; each is loaded when it is first used. The clients need httpx only, the
endpoint needs the extra `callback`, `LocalPool` the extra `pool`, and names of `rolloutpool_rl` the extra `maths`. The
error for a missing extra says what to install.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rolloutpool_rl.errors import (
        AttachmentForeign,
        ChoiceIncomplete,
        ChoiceRefused,
        ExportRefused,
        MaskInvalid,
        MathsError,
        MessagesRefused,
        PromptMismatch,
        ShapeMismatch,
        TokenUnknown,
    )
    from rolloutpool_rl.inference_context import InferenceContext
    from rolloutpool_rl.role_masks import MaskGenerator
    from rolloutpool_trainer.client.aio import AsyncRolloutClient
    from rolloutpool_trainer.client.aio_batch import AsyncBatch, AsyncTrainableGroup
    from rolloutpool_trainer.client.aio_stream import AsyncRolloutStream
    from rolloutpool_trainer.client.groups import FinishedGroup
    from rolloutpool_trainer.client.results import FinishedRollout
    from rolloutpool_trainer.client.sync import RolloutClient
    from rolloutpool_trainer.client.sync_batch import Batch, TrainableGroup
    from rolloutpool_trainer.client.sync_stream import RolloutStream
    from rolloutpool_trainer.composition import *  # noqa: F403 -- what capabilities add, by its `__all__`
    from rolloutpool_trainer.endpoint.app import CallbackApp, callback_app
    from rolloutpool_trainer.endpoint.batching import batched
    from rolloutpool_trainer.endpoint.demonstrations import Demonstrations
    from rolloutpool_trainer.endpoint.policy import GenerateParams, Generation
    from rolloutpool_trainer.endpoint.server import serve_callback
    from rolloutpool_trainer.endpoint.transformers_sampler import TransformersSampler
    from rolloutpool_trainer.errors import (
        BatchRejected,
        ChildFailed,
        ClientError,
        DemonstrationRefused,
        IdempotencyConflict,
        KeysMissing,
        LocalPoolError,
        MissingExtra,
        NotFound,
        NothingKept,
        PoolUnavailable,
        PortTaken,
        RedisMissing,
        RefillImpossible,
        RequestRefused,
        SamplesBroken,
        StateInUse,
        TrainerError,
        TurnRefused,
        Unauthorized,
        UnexpectedAnswer,
        UnreadableResults,
    )
    from rolloutpool_trainer.local.pool import LocalPool

__all__ = [
    "AsyncBatch",
    "AsyncRolloutClient",
    "AsyncRolloutStream",
    "AsyncTrainableGroup",
    "AttachmentForeign",
    "Batch",
    "BatchRejected",
    "CallbackApp",
    "ChildFailed",
    "ChoiceIncomplete",
    "ChoiceRefused",
    "ClientError",
    "DemonstrationRefused",
    "Demonstrations",
    "ExportRefused",
    "FinishedGroup",
    "FinishedRollout",
    "GenerateParams",
    "Generation",
    "IdempotencyConflict",
    "InferenceContext",
    "KeysMissing",
    "LocalPool",
    "LocalPoolError",
    "MaskGenerator",
    "MaskInvalid",
    "MathsError",
    "MessagesRefused",
    "MissingExtra",
    "NotFound",
    "NothingKept",
    "PoolUnavailable",
    "PortTaken",
    "PromptMismatch",
    "RedisMissing",
    "RefillImpossible",
    "RequestRefused",
    "RolloutClient",
    "RolloutStream",
    "SamplesBroken",
    "ShapeMismatch",
    "StateInUse",
    "TokenUnknown",
    "TrainableGroup",
    "TrainerError",
    "TransformersSampler",
    "TurnRefused",
    "Unauthorized",
    "UnexpectedAnswer",
    "UnreadableResults",
    "batched",
    "callback_app",
    "serve_callback",
]

_NAMES = {
    "rolloutpool_rl.errors": (
        *("AttachmentForeign", "ChoiceIncomplete", "ChoiceRefused", "ExportRefused", "MaskInvalid", "MathsError"),
        *("MessagesRefused", "PromptMismatch", "ShapeMismatch", "TokenUnknown"),
    ),
    "rolloutpool_rl.inference_context": ("InferenceContext",),
    "rolloutpool_rl.role_masks": ("MaskGenerator",),
    "rolloutpool_trainer.client.aio": ("AsyncRolloutClient",),
    "rolloutpool_trainer.client.aio_batch": ("AsyncBatch", "AsyncTrainableGroup"),
    "rolloutpool_trainer.client.aio_stream": ("AsyncRolloutStream",),
    "rolloutpool_trainer.client.groups": ("FinishedGroup",),
    "rolloutpool_trainer.client.results": ("FinishedRollout",),
    "rolloutpool_trainer.client.sync": ("RolloutClient",),
    "rolloutpool_trainer.client.sync_batch": ("Batch", "TrainableGroup"),
    "rolloutpool_trainer.client.sync_stream": ("RolloutStream",),
    "rolloutpool_trainer.endpoint.app": ("CallbackApp", "callback_app"),
    "rolloutpool_trainer.endpoint.batching": ("batched",),
    "rolloutpool_trainer.endpoint.demonstrations": ("Demonstrations",),
    "rolloutpool_trainer.endpoint.policy": ("GenerateParams", "Generation"),
    "rolloutpool_trainer.endpoint.server": ("serve_callback",),
    "rolloutpool_trainer.endpoint.transformers_sampler": ("TransformersSampler",),
    "rolloutpool_trainer.errors": (
        *("BatchRejected", "ChildFailed", "ClientError", "DemonstrationRefused", "IdempotencyConflict"),
        *("KeysMissing", "LocalPoolError", "MissingExtra", "NotFound", "NothingKept", "PoolUnavailable", "PortTaken"),
        *("RedisMissing", "RefillImpossible", "RequestRefused", "SamplesBroken", "StateInUse", "TrainerError"),
        *("TurnRefused", "Unauthorized", "UnexpectedAnswer", "UnreadableResults"),
    ),
    "rolloutpool_trainer.local.pool": ("LocalPool",),
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name) or _home_in_capability(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = getattr(importlib.import_module(home), name)
    except ModuleNotFoundError as error:
        from rolloutpool_trainer.errors import MissingExtra

        package = (error.name or "").partition(".")[0]
        raise MissingExtra.needed(name, package) from error
    globals()[name] = value
    return value


def _home_in_capability(name: str) -> str | None:
    """Names the module of a name that a capability adds."""
    # A module that is being imported asks for names of this one that begin so.
    if name.startswith("_"):
        return None
    from rolloutpool_trainer.composition import HOMES

    return HOMES.get(name)
