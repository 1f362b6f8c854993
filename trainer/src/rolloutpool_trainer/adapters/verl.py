"""For verl: an AgentLoop that runs its rollout in a pool (read from verl 0.9.1).

    # pool_loop.py, named in `actor_rollout_ref.rollout.agent.agent_loop_config_path` as `{name: pool, _target_: …}`
    PoolAgentLoop = agent_loop(PoolDriver(url, trainer=…), reward, prompt_length=512, response_length=2048)

An AgentLoop returns one row. Of a rollout that forked, the sample that ends it is delivered, and the others are lost;
with `Forks.REFUSE` such a rollout is an error. verl pads rows but does not cut them, so they are cut here. A rollout
that failed after all retries raises `ExportRefused`. Policy versions have no place.
"""

from collections.abc import Callable
from typing import Any

from rolloutpool_rl.export import verl_outputs
from rolloutpool_rl.formats import Forks
from rolloutpool_trainer.adapters.driver import PoolDriver, conversation
from rolloutpool_trainer.adapters.installed import needing
from rolloutpool_trainer.client.results import FinishedRollout


def agent_loop(
    driver: PoolDriver,
    reward: Callable[[FinishedRollout], float] | None = None,
    *,
    prompt_length: int,
    response_length: int,
    forks: Forks = Forks.LAST,
) -> type:
    """Makes the class of an AgentLoop.

    Args:
        driver: Its `trainer` is where verl's inference servers, or an endpoint in front of them, answer.
        reward: Of a rollout; None leaves it to verl's own reward.
        prompt_length: `rollout.prompt_length`.
        response_length: `rollout.response_length`.
        forks: `LAST` or `REFUSE`.
    """
    with needing("verl==0.9.1"):
        from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput

    class PoolAgentLoop(AgentLoopBase):  # type: ignore[misc]  # verl is not installed where this is checked
        """Runs one rollout in the pool."""

        async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> Any:
            """Runs the row's prompt; `kwargs` are the fields of its dataset."""
            item = {"messages": conversation(kwargs["raw_prompt"]), "sampling_params": dict(sampling_params)}
            (result,) = await driver.run([item])
            score = None if reward is None else reward(result)
            (output,) = verl_outputs(
                result, score, forks=forks, prompt_length=prompt_length, response_length=response_length
            )
            return AgentLoopOutput(**output | {"metrics": AgentLoopMetrics(**output["metrics"])})

    return PoolAgentLoop
