"""What a trainer imports: clients of the pool, a pool of its own, and the endpoint that the pool calls back.

Everything public is here and is imported when it is first used: the clients need httpx alone, `callback_app` and
`MaskGenerator` need the extra `callback`, `InferenceContext` needs `maths` too, `LocalPool` the extra `pool`; whoever
lacks one is told its name. The maths are functions of modules: `advantages`, `losses`, `logits`, `statistics`; the
ways out are `export` and `padded_batch`.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rolloutpool_trainer.async_client import AsyncBatch, AsyncRolloutClient
    from rolloutpool_trainer.callback import CallbackApp, callback_app
    from rolloutpool_trainer.client import Batch, RolloutClient
    from rolloutpool_trainer.errors import (
        BatchRejected,
        ChildFailed,
        ChoiceIncomplete,
        ChoiceRefused,
        ClientError,
        ExportRefused,
        IdempotencyConflict,
        KeysMissing,
        LocalPoolError,
        MaskInvalid,
        MathsError,
        MessagesRefused,
        MissingExtra,
        NotFound,
        PoolUnavailable,
        PortTaken,
        PromptMismatch,
        RedisMissing,
        RequestRefused,
        ShapeMismatch,
        StateInUse,
        TokenUnknown,
        TrainerError,
        Unauthorized,
        UnexpectedAnswer,
    )
    from rolloutpool_trainer.generation import GenerateParams, Generation
    from rolloutpool_trainer.inference_context import InferenceContext
    from rolloutpool_trainer.local_pool import LocalPool
    from rolloutpool_trainer.message_masks import MaskGenerator
    from rolloutpool_trainer.push import SignatureInvalid, verify_push
    from rolloutpool_trainer.reading import FinishedRollout
    from rolloutpool_trainer.serving import serve_callback

__all__ = [
    "AsyncBatch",
    "AsyncRolloutClient",
    "Batch",
    "BatchRejected",
    "CallbackApp",
    "ChildFailed",
    "ChoiceIncomplete",
    "ChoiceRefused",
    "ClientError",
    "ExportRefused",
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
    "PoolUnavailable",
    "PortTaken",
    "PromptMismatch",
    "RedisMissing",
    "RequestRefused",
    "RolloutClient",
    "ShapeMismatch",
    "SignatureInvalid",
    "StateInUse",
    "TokenUnknown",
    "TrainerError",
    "Unauthorized",
    "UnexpectedAnswer",
    "callback_app",
    "serve_callback",
    "verify_push",
]

_NOT_ERRORS = {
    "AsyncBatch": "async_client",
    "AsyncRolloutClient": "async_client",
    "Batch": "client",
    "CallbackApp": "callback",
    "FinishedRollout": "reading",
    "GenerateParams": "generation",
    "Generation": "generation",
    "InferenceContext": "inference_context",
    "LocalPool": "local_pool",
    "MaskGenerator": "message_masks",
    "RolloutClient": "client",
    "SignatureInvalid": "push",
    "callback_app": "callback",
    "serve_callback": "serving",
    "verify_push": "push",
}
_EXTRAS = {
    "callback": "callback",
    "generation": "callback",
    "inference_context": "callback,maths",
    "message_masks": "callback",
    "serving": "callback",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = _NOT_ERRORS.get(name, "errors")
    try:
        value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    except ModuleNotFoundError as error:
        if home not in _EXTRAS:
            raise
        from rolloutpool_trainer.errors import MissingExtra

        package = (error.name or "").partition(".")[0]
        raise MissingExtra(f"{name} needs {package}: pip install 'rolloutpool-trainer[{_EXTRAS[home]}]'") from error
    globals()[name] = value
    return value
