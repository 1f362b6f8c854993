"""verl's AgentLoop, against the fields of its output (verl 0.9.1)."""

from collections.abc import Callable

import pytest
from tests.support.api_documents import failed, result, version_segment
from tests.support.stub_pool import StubPool
from tests.support.trainer_contracts import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput, installed

from rolloutpool_rl.errors import ExportRefused
from rolloutpool_rl.formats import Forks
from rolloutpool_trainer.adapters.driver import PoolDriver
from rolloutpool_trainer.adapters.verl import agent_loop

PROMPT = [{"role": "user", "content": "1 + 1?"}]


def loop(driver: PoolDriver, **more: object) -> AgentLoopBase:
    names = {"AgentLoopBase": AgentLoopBase, "AgentLoopMetrics": AgentLoopMetrics, "AgentLoopOutput": AgentLoopOutput}
    with installed("verl.experimental.agent_loop.agent_loop", **names):
        made: AgentLoopBase = agent_loop(driver, lambda rollout: 1.5, prompt_length=8, response_length=3, **more)()  # type: ignore[arg-type]
    return made


async def test_a_row_of_the_dataset_becomes_an_output(
    pool: StubPool, driver: PoolDriver, ends: Callable[..., None]
) -> None:
    ends([version_segment("7", 5)])
    output = await loop(driver).run({"temperature": 0.5}, raw_prompt=PROMPT, index=3)  # type: ignore[attr-defined]
    assert isinstance(output, AgentLoopOutput)
    assert (output.prompt_ids, output.response_ids, output.response_mask) == ([1, 2], [3, 4, 5], [1, 1, 1])
    assert output.response_logprobs == [-0.5] * 3
    assert (output.reward_score, output.num_turns) == (1.5, 1)
    assert output.extra_fields["response_tokens_cut"] == 2
    (item,) = pool.requests[0].body["rollouts"]
    assert item == {"messages": PROMPT, "sampling_params": {"temperature": 0.5}}


async def test_of_a_fork_the_last_sample_is_delivered(driver: PoolDriver, ends: Callable[..., None]) -> None:
    samples = [*version_segment("7")["samples"], *version_segment("8", 3)["samples"]]
    ends([{"samples": samples, "alignment": "forked"}])
    output = await loop(driver).run({}, raw_prompt=PROMPT)  # type: ignore[attr-defined]
    assert (len(output.response_ids), output.extra_fields["samples"]) == (3, 2)


async def test_of_a_fork_nothing_is_delivered_if_that_was_asked(driver: PoolDriver, ends: Callable[..., None]) -> None:
    ends([{"samples": result(0)["samples"] * 2, "alignment": "forked"}])
    with pytest.raises(ExportRefused, match="2 samples"):
        await loop(driver, forks=Forks.REFUSE).run({}, raw_prompt=PROMPT)  # type: ignore[attr-defined]


async def test_a_failure_is_never_an_output(driver: PoolDriver, ends: Callable[..., None]) -> None:
    ends([failed()], [failed()])
    with pytest.raises(ExportRefused):
        await loop(driver).run({}, raw_prompt=PROMPT)  # type: ignore[attr-defined]
