"""The exceptions that end a rollout, and the base of all others.

    RolloutPoolError
    └── RolloutError                 ends one rollout; turned into one `Failure`
        ├── RequestFault             the job was wrong
        │   ├── TokenizerLoadFailed
        │   ├── TemplateUnusable
        │   └── TargetRefused
        ├── PolicyFault              the model can cause it
        │   ├── TemplateRefusedTurn
        │   └── MaskImpossible
        └── InfraFault               the model can't cause it
            ├── TrainerUnreachable
            ├── TrainerStatusError
            ├── TrainerProtocolError
            ├── TokenizerMismatch
            ├── DriftRefused
            ├── InjectionRefused
            ├── MaskDisproved
            ├── AlignmentUnverified
            ├── AmbiguousTurn
            ├── RequestChanged
            ├── ResultQuarantined
            ├── SecretUnreadable
            └── WorkerFault

A docstring is the default message. All of them survive pickling, because Celery may pickle what a task raises.
"""

from typing import ClassVar

from rolloutpool_common.outcomes import Boundary, Category, Failure, FailureKind

__all__ = [
    "AlignmentUnverified",
    "AmbiguousTurn",
    "DriftRefused",
    "InfraFault",
    "InjectionRefused",
    "MaskDisproved",
    "MaskImpossible",
    "PolicyFault",
    "RequestChanged",
    "RequestFault",
    "ResultQuarantined",
    "RolloutError",
    "RolloutPoolError",
    "SecretUnreadable",
    "TargetRefused",
    "TemplateRefusedTurn",
    "TemplateUnusable",
    "TokenizerLoadFailed",
    "TokenizerMismatch",
    "TrainerProtocolError",
    "TrainerStatusError",
    "TrainerUnreachable",
    "WorkerFault",
]


class RolloutPoolError(Exception):
    """Something in rolloutpool went wrong."""

    def __init__(self, message: str | None = None) -> None:
        self.message = message or (type(self).__doc__ or "").strip()
        super().__init__(self.message)


class RolloutError(RolloutPoolError):
    """The rollout cannot go on."""

    kind: ClassVar[FailureKind] = FailureKind.INFRA
    boundary: ClassVar[Boundary] = Boundary.WORKER
    category: ClassVar[Category] = Category.INTERNAL_ERROR
    retryable: bool = False
    """Whether another attempt is safe and could end differently."""

    def failure(self, turn: int | None = None) -> Failure:
        """This error as the record that the trainer gets."""
        return Failure(
            kind=self.kind,
            boundary=self.boundary,
            category=self.category,
            message=self.message,
            retryable=self.retryable,
            turn=turn,
        )


class RequestFault(RolloutError):
    """The request cannot be run as it stands."""

    kind = FailureKind.REQUEST
    boundary = Boundary.REQUEST
    category = Category.VALIDATION_ERROR


class TokenizerLoadFailed(RequestFault):
    """The tokenizer could not be loaded."""

    boundary = Boundary.TOKENIZER
    category = Category.TOKENIZER_ERROR


class TemplateUnusable(RequestFault):
    """The chat template cannot render this kind of conversation at all."""

    boundary = Boundary.TEMPLATE
    category = Category.TEMPLATE_REFUSED


class TargetRefused(RequestFault):
    """The pool may not call this host."""

    boundary = Boundary.TRAINER
    category = Category.TARGET_REFUSED


class PolicyFault(RolloutError):
    """What the policy sampled ended the rollout."""

    kind = FailureKind.POLICY
    boundary = Boundary.AGENT


class TemplateRefusedTurn(PolicyFault):
    """The chat template refuses what the policy sampled; the turns before it stand."""

    boundary = Boundary.TEMPLATE
    category = Category.TEMPLATE_REFUSED


class MaskImpossible(PolicyFault):
    """History renders to fewer tokens than it was sampled from; a trainer that keeps ids takes `mask_mode: exact`."""

    boundary = Boundary.TOKENS
    category = Category.MASK_IMPOSSIBLE


class InfraFault(RolloutError):
    """Something outside the policy failed."""

    kind = FailureKind.INFRA
    retryable = True


class TrainerUnreachable(InfraFault):
    """The trainer's callback endpoint did not answer."""

    boundary = Boundary.TRAINER
    category = Category.NETWORK_ERROR

    def __init__(self, message: str | None = None, *, retryable: bool = True) -> None:
        super().__init__(message)
        # False where the trainer may have sampled: nobody may ask again without its promise.
        self.retryable = retryable


class TrainerStatusError(InfraFault):
    """The trainer answered with an error status."""

    boundary = Boundary.TRAINER

    def __init__(
        self,
        message: str | None = None,
        *,
        status: int = 500,
        retry_after: float | None = None,
        retryable: bool | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after
        self.retryable = (status == 429 or status >= 500) if retryable is None else retryable

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild_status_error, (self.message, self.status, self.retry_after, self.retryable))

    def failure(self, turn: int | None = None) -> Failure:
        """As `RolloutError.failure`, with category and retryability by status."""
        if self.status == 429:
            category = Category.RATE_LIMITED
        elif self.status >= 500:
            category = Category.TRAINER_SERVER_ERROR
        elif self.status == 422:
            category = Category.MASK_REFUSED
        elif self.status >= 400:
            category = Category.TRAINER_CLIENT_ERROR
        else:
            category = Category.TRAINER_ERROR
        return Failure(
            kind=self.kind,
            boundary=self.boundary,
            category=category,
            message=self.message,
            retryable=self.status == 429 or self.status >= 500,
            http_status=self.status,
            turn=turn,
        )


def _rebuild_status_error(message: str, status: int, retry_after: float | None, retryable: bool) -> TrainerStatusError:
    return TrainerStatusError(message, status=status, retry_after=retry_after, retryable=retryable)


class TrainerProtocolError(InfraFault):
    """The trainer's reply is not what the protocol says."""

    boundary = Boundary.TRAINER
    category = Category.TRAINER_PROTOCOL_ERROR
    retryable = False


class TokenizerMismatch(InfraFault):
    """The trainer's prompt was not made with this worker's tokenizer and template."""

    boundary = Boundary.TOKENIZER
    category = Category.TOKENIZER_MISMATCH
    retryable = False


class DriftRefused(InfraFault):
    """The trainer's prompt differs from what was sampled, and `on_drift` is `fail`."""

    boundary = Boundary.TOKENS
    category = Category.DRIFT
    retryable = False


class InjectionRefused(InfraFault):
    """The trainer made control tokens of text that a tool or user typed, and `on_injection` is `fail`."""

    boundary = Boundary.TRAINER
    category = Category.INJECTED_CONTROL_TOKEN
    retryable = False


class MaskDisproved(InfraFault):
    """The trainer accepted a mask that its own prompt contradicts; set `mask_mode` to what it counts."""

    boundary = Boundary.TOKENS
    category = Category.MASK_DISPROVED
    retryable = False


class AlignmentUnverified(InfraFault):
    """The trainer echoed no prompt ids, so no mask can be proved; `allow_unverified` would accept that."""

    boundary = Boundary.TOKENS
    category = Category.UNVERIFIED
    retryable = False


class AmbiguousTurn(InfraFault):
    """A worker died during this model call, and the trainer does not promise that repeating it is safe."""

    boundary = Boundary.TRAINER
    category = Category.AMBIGUOUS_TURN
    retryable = False


class RequestChanged(InfraFault):
    """This worker would ask the turn with another body than the attempt before; give all workers the same versions."""

    boundary = Boundary.WORKER
    category = Category.REQUEST_CHANGED


class ResultQuarantined(InfraFault):
    """The result contradicts itself and was kept back."""

    boundary = Boundary.TOKENS
    category = Category.QUARANTINED
    retryable = False


class SecretUnreadable(InfraFault):
    """This worker cannot read a secret that the rollout needs; give API and workers the same keys."""

    boundary = Boundary.WORKER


class WorkerFault(InfraFault):
    """The worker failed while it ran this rollout."""

    boundary = Boundary.WORKER
    category = Category.INTERNAL_ERROR
