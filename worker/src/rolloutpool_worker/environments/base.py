"""Says what an environment is, and how to add one.

An environment gives each rollout a session: a game, a browser, a database. The pool opens it, passes on what the policy
does, asks for a score, and closes it, whatever happens in between.

    class Counter(Environment):
        crash = CrashEffect.RESTARTABLE

        async def open(self, task, seed, rollout_uid, attempt):
            return OpenedSession({"n": 0}, tools=(ADD_ONE,))

        async def call(self, session, name, arguments):
            session["n"] += 1
            return StepAnswer(str(session["n"]), done=session["n"] == task)

    ENVIRONMENTS.register("counter", Counter())

Put this into a module that `ROLLOUTPOOL_PLUGINS` names, or make the object an entry point of
`rolloutpool.environments`. A rollout asks for it with `environment: {"name": "counter", "task": 3}`.

There are two families. In one the policy calls tools (`call`). In the other each of its messages is an action (`step`,
with `by_text = True`).

`crash` declares what the end of a worker does to a session (`CrashEffect`). `restartable` promises that the same calls
with the same seed get the same answers; the pool compares them.

What these methods raise, and what becomes of it:

| raised | effect |
|---|---|
| `ToolFailed` | the policy reads its message and goes on |
| `EnvironmentFull`, by `open` | back-pressure: the rollout goes back to the queue and comes again |
| `RequestFault`, by `open` | the task is wrong; the rollout fails, and is not retried |
| `EnvironmentFault` | the rollout fails as `infra`, and is retried if the error says so |
| anything else, or no answer in time | the same, as `environment_error` |

They run on the worker's event loop, beside other rollouts. What blocks belongs into `asyncio.to_thread`.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from rolloutpool_common.errors import RolloutPoolError
from rolloutpool_common.protocol.environments import CrashEffect
from rolloutpool_common.protocol.tools import ToolDefinition
from rolloutpool_worker.plugins import Registry


class EnvironmentFull(RolloutPoolError):
    """The environment has no room for another session now; the rollout waits in the queue."""


@dataclass(frozen=True)
class OpenedSession:
    """A session that has just been opened."""

    session: Any
    """Whatever the environment knows it by; the pool only passes it on."""
    messages: Sequence[Mapping[str, Any]] = ()
    """What the policy reads before its first turn, after the rollout's own messages."""
    tools: Sequence[ToolDefinition | Mapping[str, Any]] = ()
    """What the policy may call, as `ToolDefinition`s or dicts in OpenAI's form,
    `{"type": "function", "function": {"name", "description", "parameters"}}`; none where each message is an action. A
    restored session has the same tools as the first one."""
    once: Set[str] = frozenset()
    """Tools of a `stateless` environment that must not be called again where nobody knows whether they were."""


@dataclass(frozen=True)
class StepAnswer:
    """Holds what an environment says to a call or a message."""

    content: str
    """What the policy reads."""
    reward: float | None = None
    """Of this step alone."""
    done: bool = False
    """Whether the episode is over; the policy is then not asked again."""
    info: Mapping[str, Any] = field(default_factory=dict)
    """Anything else that can be written as JSON; it is kept in the journal."""


@dataclass(frozen=True)
class SessionScore:
    """Holds what a rollout is worth."""

    reward: float
    parts: Mapping[str, float] = field(default_factory=dict)
    """What the reward is made of."""


class Environment:
    """Gives each rollout a session. Derive from it, and override what the family needs."""

    crash: CrashEffect = CrashEffect.NONE
    """What the end of a worker does to a session."""
    by_text: bool = False
    """Whether each message of the policy is an action."""
    places: int | None = None
    """Sessions that one worker process may have open at once; further rollouts wait. None sets no limit."""

    async def open(self, task: Any, seed: int | None, rollout_uid: str, attempt: int) -> OpenedSession:
        """Opens a session.

        Args:
            task: As the rollout gives it, any JSON.
            seed: As the rollout gives it.
            rollout_uid: The pool's name of the rollout. An environment that keeps sessions outside the worker binds
                them to it.
            attempt: Counts from 1. A session of a lower attempt is over: its worker has died, or was taken for dead.
        """
        raise NotImplementedError

    async def call(self, session: Any, name: str, arguments: dict[str, Any]) -> StepAnswer | str:
        """Answers one call of a tool; a text alone is an answer too.

        Args:
            session: As `open` or `restore` returned it.
            name: One of the session's tools.
            arguments: They fit the tool's schema.
        """
        raise NotImplementedError

    async def step(self, session: Any, text: str) -> StepAnswer:
        """Answers one message of the policy.

        Args:
            session: As `open` or `restore` returned it.
            text: What the policy wrote.
        """
        raise NotImplementedError

    async def score(self, session: Any, transcript: Sequence[dict[str, Any]]) -> SessionScore | None:
        """Says what a completed rollout is worth; None where this environment gives no score.

        Args:
            session: As `open` or `restore` returned it.
            transcript: All messages, in normal form; not to be changed.
        """
        del session, transcript
        return None

    async def close(self, session: Any) -> None:
        """Frees what the session holds. It is called once for each session, also after failures.

        Args:
            session: As `open` or `restore` returned it.
        """
        del session

    async def snapshot(self, session: Any) -> bytes:
        """Writes down a session, where `crash` is `snapshot`. It is called after each answer.

        Args:
            session: As `open` or `restore` returned it.
        """
        raise NotImplementedError

    async def restore(
        self, snapshot: bytes, task: Any, seed: int | None, rollout_uid: str, attempt: int
    ) -> OpenedSession:
        """Opens a session at the point at which another one was written down; its messages are not read.

        Args:
            snapshot: As `snapshot` returned it.
            task: As for `open`.
            seed: As for `open`.
            rollout_uid: As for `open`.
            attempt: As for `open`.
        """
        raise NotImplementedError

    async def aclose(self) -> None:
        """Frees what the environment itself holds; called when its worker stops, after the last session's close."""


ENVIRONMENTS: Registry[Environment] = Registry("rolloutpool.environments")
