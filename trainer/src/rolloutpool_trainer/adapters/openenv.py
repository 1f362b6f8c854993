"""For OpenEnv: agents that run in its harness environments or its sessions lead rollouts (read from openenv 0.10.0).

1. A rollout waits for a program (`harness: {external: true}`).
2. The caller's function makes OpenEnv's object, with the session's address and key where its agent reads them. For
   agents that speak turn by turn that is a `HarnessEnvironment` (`play_turns`); for those that run by themselves until
   they end, a session of a factory (`play_session`).
3. What OpenEnv says the episode is worth ends the rollout's session. An agent that has crashed, or an episode without
   a reward, ends it as failed, so the rollout fails as `infra` and is no sample with reward 0.

Nothing of OpenEnv is imported before something is played: its objects are the caller's.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from rolloutpool_trainer.adapters.installed import needing
from rolloutpool_trainer.client.aio_batch import AsyncBatch

T = TypeVar("T")


class ModelAddress(Protocol):
    """Where an agent finds its model: a rollout's session."""

    @property
    def uid(self) -> str:
        """Returns the rollout's uid."""
        ...

    @property
    def url(self) -> str:
        """Returns the base address; OpenAI's SDKs want `/v1` behind it."""
        ...

    @property
    def key(self) -> str:
        """Returns the key, which is the session's alone."""
        ...


class EpisodeUnscored(Exception):
    """The episode has ended without a reward: the agent has failed, or nothing has scored it."""


async def play_turns(
    batch: AsyncBatch, index: int, make: Callable[[ModelAddress], Any], says: Sequence[str]
) -> list[Any]:
    """Has an agent of a `HarnessEnvironment` lead a rollout, and ends the session with its last reward.

    Args:
        batch: The batch that has the rollout.
        index: The rollout's place in it.
        make: Makes the environment of a session, whose `url` (with `/v1` behind it for OpenAI's SDK) and `key` belong
            into `HarnessConfig.env_vars` or whatever its adapter gives the agent.
        says: What the user says, one turn after the other; fewer are said where the agent says that it is done.

    Returns:
        OpenEnv's observations, one for each turn.

    Raises:
        MissingExtra: OpenEnv is not installed.
        EpisodeUnscored: A turn has failed, or the last one has no reward. The session has ended as failed.
    """
    with needing("openenv==0.10.0"):
        from openenv.core.harness import HarnessAction

    async def play(session: ModelAddress) -> tuple[list[Any], float, Mapping[str, Any]]:
        environment, seen = make(session), list[Any]()
        try:
            await environment.reset_async(episode_id=session.uid)
            for text in says:
                seen.append(await environment.step_async(HarnessAction(message=text)))
                if (error := seen[-1].metadata.get("error")) is not None:
                    raise EpisodeUnscored(str(error))
                if seen[-1].done:
                    break
        finally:
            await asyncio.to_thread(environment.close)
        # An environment without a rubric gives each turn 0.0, which says nothing.
        if environment.rubric is None or not seen:
            raise EpisodeUnscored("the environment has no rubric")
        return seen, _reward(seen[-1].reward), {}

    return await _ended(batch, index, play)


async def play_session(
    batch: AsyncBatch, index: int, make: Callable[[ModelAddress], Any], *, seconds: float | None = None
) -> Any:
    """Waits until the agent of an OpenEnv session has ended, and ends the rollout's session with what `verify` says.

    Args:
        batch: The batch that has the rollout.
        index: The rollout's place in it.
        make: Creates OpenEnv's session (`factory.create`, of a factory whose agents call `session.url` with
            `session.key`). It is called in a thread.
        seconds: How long the agent may take; None leaves that to OpenEnv.

    Returns:
        OpenEnv's `VerifyResult`. Its metrics that are numbers are the reward's parts.

    Raises:
        EpisodeUnscored: `verify` has no reward. The session has ended as failed.
    """

    async def play(session: ModelAddress) -> tuple[Any, float, Mapping[str, Any]]:
        resource = await asyncio.to_thread(make, session)
        try:
            await asyncio.to_thread(resource.wait_for_completion, *(() if seconds is None else (seconds,)))
            # The transcript is the rollout's own; what the agent has done is in the resources that `verify` looks at.
            found = await asyncio.to_thread(resource.verify, [])
        finally:
            await asyncio.to_thread(resource.close)
        return found, _reward(found.env_reward), found.metrics

    return await _ended(batch, index, play)


def _reward(given: Any) -> float:
    """Reads a reward, which OpenEnv leaves open where nothing has scored the episode."""
    if given is None or not math.isfinite(float(given)):
        raise EpisodeUnscored(f"the episode's reward is {given}")
    return float(given)


async def _ended(
    batch: AsyncBatch,
    index: int,
    play: Callable[[ModelAddress], Awaitable[tuple[T, float, Mapping[str, Any]]]],
) -> T:
    """Plays an episode, and ends the session by it."""
    session = await batch.session(index)
    try:
        found, reward, metrics = await play(session)
    except BaseException as error:
        await batch.end_session(index, failed=f"its episode has no reward: {type(error).__name__}: {error}"[:1000])
        raise
    # Metrics are what an environment likes to say; parts of a reward are numbers.
    parts = {
        name: float(value)
        for name, value in metrics.items()
        if isinstance(value, int | float) and math.isfinite(float(value))
    }
    await batch.end_session(index, reward=reward, reward_parts=parts or None)
    return found
