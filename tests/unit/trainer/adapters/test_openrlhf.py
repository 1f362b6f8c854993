"""OpenRLHF's agent executor, against the keys of its output (OpenRLHF 0.11.2, openrlhf/utils/agent.py)."""

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.api_documents import result
from tests.support.stub_pool import StubPool
from tests.support.trainer_contracts import AgentExecutorBase, installed

from rolloutpool_rl.errors import ExportRefused
from rolloutpool_trainer.adapters.driver import PoolDriver
from rolloutpool_trainer.adapters.openrlhf import agent_executor

SAMPLING = SimpleNamespace(temperature=0.5, top_p=1.0, max_tokens=None)
MESSAGES = [{"role": "user", "content": "1 + 1?"}]


def executor(driver: PoolDriver) -> Any:
    with installed("openrlhf.utils.agent", AgentExecutorBase=AgentExecutorBase):
        return agent_executor(driver, lambda rollout, label: float(label))()


@pytest.mark.parametrize("prompt", ["1 + 1?", json.dumps(MESSAGES)])
async def test_a_prompt_becomes_a_sequence(
    prompt: str, pool: StubPool, driver: PoolDriver, ends: Callable[..., None]
) -> None:
    ends([{}])
    output = await executor(driver).execute(prompt, "2", SAMPLING, 64, hf_tokenizer=None, llm_engine=None)
    assert output == {
        "prompt": prompt,
        "label": "2",
        "reward": 2.0,
        "scores": 2.0,
        "observation_tokens": [1, 2, 3, 4],
        "action_ranges": [(2, 4)],
        "rollout_log_probs": [0.0, 0.0, -0.5, -0.25],
        "truncated": False,
        "extra_logs": {"turns": 1, "tool_calls": 0},
    }
    (item,) = pool.requests[0].body["rollouts"]
    assert item["messages"] == MESSAGES
    assert item["sampling_params"] == {"temperature": 0.5, "top_p": 1.0, "max_tokens": 64}


async def test_a_fork_is_refused(driver: PoolDriver, ends: Callable[..., None]) -> None:
    ends([{"samples": result(0)["samples"] * 2}])
    with pytest.raises(ExportRefused, match="2 samples"):
        await executor(driver).execute("1 + 1?", "2", SAMPLING, 64)
