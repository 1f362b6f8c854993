"""What a trainer imports: clients of the pool, a pool of its own, and the endpoint that the pool calls back.

Everything public is here and is imported when it is first used: the clients need httpx alone, `callback_app` needs
the extra `callback`, `LocalPool` the extra `pool`; whoever lacks one is told its name.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rolloutpool_common.protocol.push import SignatureInvalid
    from rolloutpool_trainer.async_client import AsyncBatch, AsyncRolloutClient
    from rolloutpool_trainer.callback import callback_app
    from rolloutpool_trainer.client import Batch, RolloutClient
    from rolloutpool_trainer.errors import (
        BatchRejected,
        ChildFailed,
        ClientError,
        IdempotencyConflict,
        LocalPoolError,
        MissingExtra,
        NotFound,
        PoolUnavailable,
        PortTaken,
        RedisMissing,
        RequestRefused,
        StateInUse,
        TrainerError,
        Unauthorized,
        UnexpectedAnswer,
    )
    from rolloutpool_trainer.local_pool import LocalPool
    from rolloutpool_trainer.push import verify_push
    from rolloutpool_trainer.reading import FinishedRollout

__all__ = [
    "AsyncBatch",
    "AsyncRolloutClient",
    "Batch",
    "BatchRejected",
    "ChildFailed",
    "ClientError",
    "FinishedRollout",
    "IdempotencyConflict",
    "LocalPool",
    "LocalPoolError",
    "MissingExtra",
    "NotFound",
    "PoolUnavailable",
    "PortTaken",
    "RedisMissing",
    "RequestRefused",
    "RolloutClient",
    "SignatureInvalid",
    "StateInUse",
    "TrainerError",
    "Unauthorized",
    "UnexpectedAnswer",
    "callback_app",
    "verify_push",
]

_ELSEWHERE = {
    "AsyncBatch": "rolloutpool_trainer.async_client",
    "AsyncRolloutClient": "rolloutpool_trainer.async_client",
    "Batch": "rolloutpool_trainer.client",
    "FinishedRollout": "rolloutpool_trainer.reading",
    "LocalPool": "rolloutpool_trainer.local_pool",
    "RolloutClient": "rolloutpool_trainer.client",
    "SignatureInvalid": "rolloutpool_common.protocol.push",
    "callback_app": "rolloutpool_trainer.callback",
    "verify_push": "rolloutpool_trainer.push",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = _ELSEWHERE.get(name, "rolloutpool_trainer.errors")
    try:
        value = getattr(importlib.import_module(home), name)
    except ModuleNotFoundError as error:
        if name != "callback_app" or (error.name or "").startswith("rolloutpool_trainer"):
            raise
        from rolloutpool_trainer.errors import MissingExtra

        raise MissingExtra(f"callback_app needs {error.name}: pip install 'rolloutpool-trainer[callback]'") from error
    globals()[name] = value
    return value
