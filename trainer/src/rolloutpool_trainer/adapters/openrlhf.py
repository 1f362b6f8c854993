"""For OpenRLHF: an agent executor (read from OpenRLHF 0.11.2).

    # my_agent.py, for --train.agent_func_path
    AgentExecutor = agent_executor(PoolDriver(url, trainer=…), reward)

`execute` returns one sequence: a rollout that forked, or that failed after all retries, raises `ExportRefused`. Policy
versions and images have no place.
OpenRLHF's prompt is text that its chat template has rendered already, and the pool renders messages; so give it
prompts without template (`--data.apply_chat_template` off), as text or as JSON of messages.
"""

import json
from collections.abc import Callable
from typing import Any

from rolloutpool_rl.export import openrlhf_output
from rolloutpool_trainer.adapters.driver import PoolDriver, conversation
from rolloutpool_trainer.adapters.installed import needing
from rolloutpool_trainer.client.results import FinishedRollout


def agent_executor(driver: PoolDriver, reward: Callable[[FinishedRollout, Any], float]) -> type:
    """Makes the class `AgentExecutor` that OpenRLHF looks for.

    Args:
        driver: Its `trainer` is where OpenRLHF's engines, or an endpoint in front of them, answer.
        reward: Of a rollout, and the row's label.
    """
    with needing("openrlhf==0.11.2"):
        from openrlhf.utils.agent import AgentExecutorBase

    class AgentExecutor(AgentExecutorBase):  # type: ignore[misc]  # OpenRLHF is not installed where this is checked
        """Runs one rollout in the pool."""

        async def execute(
            self, prompt: Any, label: Any, sampling_params: Any, max_length: int, *engine: Any, **more: Any
        ) -> dict[str, Any]:
            """Runs a prompt; tokenizer and engine are not used, because the pool has its own."""
            sampling = {
                "temperature": sampling_params.temperature,
                "top_p": sampling_params.top_p,
                "max_tokens": sampling_params.max_tokens or max_length,
            }
            messages = json.loads(prompt) if isinstance(prompt, str) and prompt.startswith("[{") else prompt
            (result,) = await driver.run([{"messages": conversation(messages), "sampling_params": sampling}])
            return openrlhf_output(result, reward(result, label), prompt=prompt, label=label)

    return AgentExecutor
