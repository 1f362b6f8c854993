"""For Harbor: each task is a rollout, which one of Harbor's agents leads in one of its environments (read from 0.26.0).

1. `harbor_rollout` makes a rollout of a task's folder. Its message is the task's instruction, and it waits for a
   program (`harness: {external: true}`).
2. `play_trial` has Harbor run a trial of the task: it opens the environment, starts the agent with the session's
   address and key in the place of a model's, and asks the verifier.
3. What the verifier says ends the session. A trial without a verdict ends it as failed, so the rollout fails as `infra`
   and is no sample with reward 0.

Harbor needs Python 3.12, and is imported when a trial is played.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rolloutpool_trainer.adapters.installed import needing
from rolloutpool_trainer.client.aio_batch import AsyncBatch

KEYS = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY")
"""Variables in which Harbor's agents look for a key, by the SDK that they use."""


class NoVerdict(Exception):
    """The trial has ended without a reward: the environment or the verifier has failed."""


def harbor_rollout(task: Path | str, **options: Any) -> dict[str, Any]:
    """Makes the rollout of a task.

    Args:
        task: Its folder, with `instruction.md`.
        options: Further options of the rollout. `harness` may have all but `preset` and `command`.

    Returns:
        A rollout for `submit`, with the folder's name in `metadata`.

    Raises:
        OSError: The folder has no instruction.
    """
    folder = Path(task)
    text = (folder / "instruction.md").read_text(encoding="utf-8")
    metadata = {"harbor_task": folder.name, **options.pop("metadata", {})}
    harness = {"external": True, **options.pop("harness", {})}
    return {"messages": [{"role": "user", "content": text}], "metadata": metadata, "harness": harness, **options}


def main_reward(rewards: Mapping[str, float]) -> float:
    """Returns the reward named `reward`, or the only one. Raises `ValueError` where neither is there."""
    if "reward" in rewards:
        return float(rewards["reward"])
    if len(rewards) == 1:
        return float(next(iter(rewards.values())))
    raise ValueError(f"the verifier has rewards {sorted(rewards)}; say with `worth` what they make together")


async def play_trial(
    batch: AsyncBatch,
    index: int,
    task: Path | str,
    *,
    agent: Mapping[str, Any],
    environment: Mapping[str, Any] | None = None,
    trials: Path | str = "trials",
    worth: Callable[[Mapping[str, float]], float] = main_reward,
) -> Any:
    """Plays the trial of one rollout, and ends its session.

    Args:
        batch: The batch that has the rollout.
        index: The rollout's place in it.
        task: The task's folder.
        agent: Fields of Harbor's `AgentConfig`: `name` or `import_path`, `model_name` (`openai/policy`,
            `anthropic/policy`, by what the agent speaks), `kwargs` …; address and key are filled in.
        environment: Fields of its `EnvironmentConfig`; None takes Harbor's default, which is Docker.
        trials: Folder for what Harbor keeps of trials.
        worth: Makes the rollout's reward of the verifier's rewards, which are kept as its parts.

    Returns:
        Harbor's `TrialResult`.

    Raises:
        MissingExtra: Harbor is not installed; it takes Python 3.12 or newer.
        NoVerdict: The trial has no reward. The session has ended as failed.
    """
    with needing("harbor==0.26.0"):
        from harbor.models.trial.config import AgentConfig, EnvironmentConfig, TaskConfig, TrialConfig
        from harbor.trial.trial import Trial
    session = await batch.session(index)
    env = {**dict.fromkeys(KEYS, session.key), **agent.get("env", {})}
    config = TrialConfig(
        task=TaskConfig(path=Path(task)),
        trials_dir=Path(trials),
        agent=AgentConfig(**{**agent, "base_url": f"{session.url}/v1", "env": env}),
        environment=EnvironmentConfig(**(environment or {})),
    )
    try:
        trial = await Trial.create(config)
        result = await trial.run()
        # An agent that ran out of time has a verdict all the same.
        rewards = result.verifier_result and result.verifier_result.rewards
        if not rewards:
            raise NoVerdict(result.exception_info.exception_type if result.exception_info else "no reward was written")
        reward = worth(rewards)
    except BaseException as error:
        await batch.end_session(index, failed=f"its trial has no verdict: {type(error).__name__}: {error}"[:1000])
        raise
    await batch.end_session(index, reward=reward, reward_parts=rewards)
    return result
