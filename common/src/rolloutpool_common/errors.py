"""The exceptions that end a rollout, and the base of all others.

An error that ends a rollout knows everything that its `Failure` says: kind, boundary, category, whether another attempt
is safe (`retryable`), and the trainer's status code. It decides these once, when it is made; `failure()` only copies
them. So the code that retries a call and the code that requeues a rollout always agree.

    RolloutPoolError
    ├── MissingExtra                 a part of a distribution was not installed
    └── RolloutError                 ends one rollout; turned into one `Failure`
        ├── RequestFault             the job was wrong
        │   ├── TokenizerLoadFailed
        │   ├── PromptTooLong
        │   ├── TemplateUnusable
        │   └── TargetRefused
        ├── PolicyFault              the policy can cause it
        │   ├── TemplateRefusedTurn
        │   ├── TooManyToolCalls
        │   └── MaskImpossible
        └── InfraFault               the policy cannot cause it
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
            ├── ToolFault
            ├── EnvironmentFault
            │   ├── EnvironmentLost
            │   └── EnvironmentDiverged
            ├── LeaseExpired
            ├── PoisonRollout
            └── WorkerFault

A class's docstring is its default message. All of them survive pickling, because Celery may pickle what a task raises.
"""

import traceback
from pathlib import Path
from typing import ClassVar

from rolloutpool_common.outcomes import Boundary, Category, Failure, FailureKind
from rolloutpool_common.protocol.drift import PromptDifference


class RolloutPoolError(Exception):
    """Something in rolloutpool went wrong."""

    def __init__(self, message: str | None = None) -> None:
        self.message = message or (type(self).__doc__ or "").strip()
        super().__init__(self.message)

    # By default an exception is copied by calling its class with the message alone, and some take more.
    def __reduce__(self) -> tuple[object, ...]:
        reduced = super().__reduce__()
        assert isinstance(reduced, tuple)
        return (_made_again, reduced[:2], *reduced[2:])


def _made_again(kind: type[RolloutPoolError], args: tuple[object, ...]) -> RolloutPoolError:
    """Makes an error without its `__init__`; what that has set follows as its state."""
    return kind.__new__(kind, *args)


class MissingExtra(RolloutPoolError, ModuleNotFoundError):
    """A part of rolloutpool is not installed."""

    INSTALL = "pip install -e common -e rl -e api -e 'worker[flower]' -e 'trainer[pool,callback,maths]'"
    """Everything, as docs/quickstart.md prints it. The distributions are on no index, so no name of them is advised."""

    @classmethod
    def needed(cls, by: str, module: str, line: str = INSTALL) -> "MissingExtra":
        """Makes the error of what needs a module, with the line that installs it from the checkout."""
        error = cls(f"{by} needs {module}; in the checkout: {line} (docs/quickstart.md#install)")
        error.name = module
        return error


class RolloutError(RolloutPoolError):
    """The rollout cannot go on."""

    kind: ClassVar[FailureKind] = FailureKind.INFRA
    boundary: ClassVar[Boundary] = Boundary.WORKER
    category: Category = Category.INTERNAL_ERROR
    retryable: bool = False
    """Whether another attempt is safe and could end differently."""
    http_status: int | None = None
    """The trainer's status code, where there was one."""
    difference: PromptDifference | None = None
    """Where the trainer's prompt differs from the ledger, if that ends the rollout."""

    def failure(self, turn: int | None = None) -> Failure:
        """Makes the record of this error that the trainer gets."""
        return Failure(
            kind=self.kind,
            boundary=self.boundary,
            category=self.category,
            message=self.message,
            retryable=self.retryable,
            http_status=self.http_status,
            turn=turn,
            difference=self.difference,
        )


class RequestFault(RolloutError):
    """The request cannot be run as it stands."""

    kind = FailureKind.REQUEST
    boundary = Boundary.REQUEST
    category = Category.VALIDATION_ERROR


class PromptTooLong(RequestFault):
    """The first prompt leaves no room in the engine's context."""


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


class TooManyToolCalls(PolicyFault):
    """The policy called more tools in one turn than a worker runs; none of them was run."""

    category = Category.TOOL_ERROR


class MaskImpossible(PolicyFault):
    """History renders to fewer tokens than it was sampled from; a trainer that keeps ids takes `mask_mode: exact`."""

    boundary = Boundary.TOKENS
    category = Category.MASK_IMPOSSIBLE


class InfraFault(RolloutError):
    """Something outside the policy failed."""

    kind = FailureKind.INFRA
    retryable = True

    def __init__(self, message: str | None = None, *, retryable: bool | None = None) -> None:
        """`retryable` says whether another attempt is safe and could end differently; None leaves the class's."""
        super().__init__(message)
        self.retryable = self.retryable if retryable is None else retryable


class TrainerUnreachable(InfraFault):
    """The trainer's callback endpoint did not answer."""

    boundary = Boundary.TRAINER
    category = Category.NETWORK_ERROR


NOT_SAMPLED = frozenset({429, 500, 503})
"""Statuses by which a trainer says that it has not sampled this turn, so that asking again is always safe. 502 and 504
are not among them: a gateway that lost its upstream does not know whether the policy sampled."""


class TrainerStatusError(InfraFault):
    """The trainer answered with an error status."""

    boundary = Boundary.TRAINER

    def __init__(
        self,
        message: str | None = None,
        *,
        status: int = 500,
        retry_after: float | None = None,
        repeatable: bool = False,
        said: str = "",
        error_type: str = "",
    ) -> None:
        """Decides the category and whether the call may be repeated."""
        super().__init__(message)
        self.said, self.error_type, self.http_status, self.retry_after = said, error_type, status, retry_after
        self.retryable = status in NOT_SAMPLED or (repeatable and status >= 500)
        self.category = _category_of(status)


def _category_of(status: int) -> Category:
    if status == 429:
        return Category.RATE_LIMITED
    if status == 422:
        return Category.MASK_REFUSED
    if status >= 500:
        return Category.TRAINER_SERVER_ERROR
    if status >= 400:
        return Category.TRAINER_CLIENT_ERROR
    return Category.TRAINER_ERROR


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

    category = Category.REQUEST_CHANGED


class ResultQuarantined(InfraFault):
    """The result contradicts itself and was kept back."""

    boundary = Boundary.TOKENS
    category = Category.QUARANTINED
    retryable = False


class SecretUnreadable(InfraFault):
    """This worker cannot read a secret that the rollout needs; give API and workers the same keys."""


class ToolFault(InfraFault):
    """A tool failed, and `on_tool_error` is `fail`."""

    boundary = Boundary.TOOL
    category = Category.TOOL_ERROR


class EnvironmentFault(InfraFault):
    """The rollout's environment failed."""

    boundary = Boundary.ENVIRONMENT
    category = Category.ENVIRONMENT_ERROR


class EnvironmentLost(EnvironmentFault):
    """The session ended with its worker, and this environment cannot make it again."""

    category = Category.ENVIRONMENT_LOST
    retryable = False


class EnvironmentDiverged(EnvironmentFault):
    """A fresh session answered otherwise than the first one, although it declares that it can be restarted."""

    category = Category.ENVIRONMENT_DIVERGED
    retryable = False


class LeaseExpired(InfraFault):
    """The polling lease expired: nobody asked for the result in time."""

    boundary = Boundary.TRAINER
    category = Category.LEASE_EXPIRED


class PoisonRollout(InfraFault):
    """Several workers died while they ran this rollout; look into their logs before resubmitting."""

    category = Category.POISON
    retryable = False


class WorkerFault(InfraFault):
    """The worker failed while it ran this rollout."""

    @classmethod
    def of(cls, error: BaseException) -> "WorkerFault":
        """Makes the fault of an unexpected error, such as a plug-in's."""
        frames = traceback.extract_tb(error.__traceback__)
        place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno} in {frames[-1].name})" if frames else ""
        return cls(f"the worker failed with {type(error).__name__}{place}; its log has the traceback")
