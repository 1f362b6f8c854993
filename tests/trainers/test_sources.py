"""What other trainers check, in their own words, on what our adapters give them: `make test-trainers`.

These trainers can't be imported on a machine without GPU, so the checks are taken out of their released wheels
(`tests/support/wheel_sources.py`). An adapter that they would refuse fails here, and so does a release that has another
contract.
"""

import asyncio
import inspect
import logging
import runpy
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Optional

import numpy as np
import pytest
from pydantic import BaseModel
from tests.support.api_documents import failed, result, version_segment
from tests.support.exported_rollouts import FORKED, PLAIN
from tests.support.small_model import small_model
from tests.support.trainer_contracts import installed
from tests.support.wheel_sources import SOURCES, taken

from rolloutpool_common.rendering import TINY, load_tokenizer
from rolloutpool_rl.errors import ExportRefused
from rolloutpool_rl.export import skyrl_output
from rolloutpool_trainer import GenerateParams, LocalPool, TransformersSampler
from rolloutpool_trainer.adapters.areal import ARealPoolWorkflow
from rolloutpool_trainer.adapters.driver import PoolDriver
from rolloutpool_trainer.adapters.openrlhf import agent_executor
from rolloutpool_trainer.adapters.skyrl import SkyRLPoolGenerator
from rolloutpool_trainer.adapters.slime import rollout_function
from rolloutpool_trainer.adapters.verl import agent_loop

torch: Any = pytest.importorskip("torch", reason="torch has an environment of its own: make test-trainers")
if not SOURCES.is_dir():
    pytest.skip("the wheels are fetched by make test-trainers", allow_module_level=True)

pytest_plugins = ["tests.unit.trainer.conftest", "tests.unit.trainer.adapters.conftest"]

ROOT = Path(__file__).parents[2]
Ends = Callable[..., None]
PROMPT = [{"role": "user", "content": "1 + 1?"}]
FORK = {"samples": [*version_segment("4", 3)["samples"], *result(0)["samples"]], "alignment": "forked"}


def test_verl_s_output_becomes_its_tensors(driver: PoolDriver, ends: Ends) -> None:
    path = "verl/experimental/agent_loop/agent_loop.py"
    known: dict[str, Any] = {"Any": Any, "Optional": Optional, "BaseModel": BaseModel, "torch": torch}
    verl = taken("verl", path, "AgentLoopMetrics", "AgentLoopOutput", later=False, **known)
    verl.AgentLoopBase = taken("verl", path, "AgentLoopBase", ABC=ABC, abstractmethod=abstractmethod).AgentLoopBase
    ends([version_segment("7", 5)])
    with installed("verl.experimental.agent_loop.agent_loop", **vars(verl)):
        loop = agent_loop(driver, lambda rollout: 1.5, prompt_length=8, response_length=3)
    assert issubclass(loop, verl.AgentLoopBase)
    made: Any = object.__new__(loop)
    output = asyncio.run(made.run({"temperature": 0.5}, raw_prompt=PROMPT))
    assert isinstance(output, verl.AgentLoopOutput)
    row = output.as_dict()
    assert {name: tensor.tolist() for name, tensor in row.items() if torch.is_tensor(tensor)} == {
        "prompts": [1, 2],
        "responses": [3, 4, 5],
        "response_mask": [1, 1, 1],
        "rollout_log_probs": [-0.5] * 3,
        "rm_scores": [0.0, 0.0, 1.5],
    }


class Served:
    """What verl's `LLMServerClient` is to a loop, over a small model."""

    def __init__(self, sampler: TransformersSampler) -> None:
        self._sampler = sampler

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any], **kwargs: Any
    ) -> Any:
        how = {name: sampling_params.pop(name) for name in ("temperature", "top_p", "max_tokens", "logprobs")}
        plain: dict[str, Any] = {"rollout_id": request_id, "turn": 1, "messages": [], "tools": None, "stop": None}
        turn = await self._sampler(prompt_ids, GenerateParams(**plain, **how, extra=sampling_params))
        return SimpleNamespace(token_ids=turn.token_ids, log_probs=turn.logprobs)


def test_verl_s_example_runs_in_a_pool_and_asks_verl_s_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    path = "verl/experimental/agent_loop/agent_loop.py"
    known: dict[str, Any] = {"Any": Any, "Optional": Optional, "BaseModel": BaseModel, "torch": torch}
    verl = taken("verl", path, "AgentLoopMetrics", "AgentLoopOutput", later=False, **known)
    verl.AgentLoopBase = taken("verl", path, "AgentLoopBase", ABC=ABC, abstractmethod=abstractmethod).AgentLoopBase
    theirs = taken("verl", "verl/workers/rollout/llm_server.py", "LLMServerClient.generate", rollout_trace_op=_same)
    taken_names = [*inspect.signature(theirs.generate).parameters][1:4]
    assert taken_names == [*inspect.signature(Served.generate).parameters][1:4]
    tokenizer = load_tokenizer(TINY)
    with LocalPool(workers=1, flower=False) as pool:
        variables = {"POOL_URL": pool.url, "POOL_TOKENIZER": TINY, "POOL_CALLBACK_HOST": "127.0.0.1"}
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        with installed("verl.experimental.agent_loop.agent_loop", **vars(verl)):
            example = runpy.run_path(str(ROOT / "examples" / "trainers" / "verl_pool_loop.py"))
            loop = object.__new__(example["PoolAgentLoop"])
            loop.server_manager = Served(TransformersSampler(small_model(tokenizer.vocab_size), tokenizer))
            sampling = {"temperature": 0.8, "top_p": 1.0, "top_k": -1, "logprobs": True, "max_tokens": 6}
            with example["SERVING"]:
                outputs = asyncio.run(_both(loop, sampling))
    for output in outputs:
        assert isinstance(output, verl.AgentLoopOutput)
        assert 1 <= len(output.response_ids) == len(output.response_mask) == len(output.response_logprobs)
        assert sum(output.response_mask) > 0
        assert output.reward_score == 0.0


def _same(function: Any) -> Any:
    return function


async def _both(loop: Any, sampling: dict[str, Any]) -> list[Any]:
    return await asyncio.gather(*(loop.run(dict(sampling), raw_prompt=PROMPT) for _ in range(2)))


def skyrl_check() -> Callable[..., None]:
    known: dict[str, Any] = {"np": np, "logger": logging.getLogger(), "SAMPLE_SUPPORT_FIELD": "rollout_sample_support"}
    names = ("validate_generator_output", "_validate_per_token_side_channels", "_validate_step_wise_fields")
    check: Callable[..., None] = taken(
        "skyrl", "skyrl/train/utils/trainer_utils.py", *names, **known
    ).validate_generator_output
    return check


def test_skyrl_validates_our_output(driver: PoolDriver, ends: Ends) -> None:
    generator = SkyRLPoolGenerator(driver, lambda rollout, extra: 1.0)
    ends([{}, {}])
    names = [SimpleNamespace(instance_id="q", repetition_id=n) for n in range(2)]
    output = asyncio.run(generator.generate({"prompts": [PROMPT] * 2, "trajectory_ids": names}))
    skyrl_check()(2, output)
    base = taken("skyrl", "skyrl/train/generators/base.py", "GeneratorOutput", TypedDict=dict)
    assert set(output) <= set(base.GeneratorOutput.__annotations__)


@pytest.mark.parametrize("rollouts", [[PLAIN, FORKED], [PLAIN, PLAIN]])
def test_skyrl_validates_our_steps(rollouts: list[Any]) -> None:
    check = skyrl_check()
    check(2, skyrl_output(rollouts, [1.0, 2.0], ["a", "b"], step_wise=True), step_wise=True)
    # What it refuses, so that the check is known to look: a batch that names no steps.
    with pytest.raises(AssertionError, match="is_last_step"):
        check(2, skyrl_output([PLAIN, PLAIN], [1.0, 2.0], ["a", "b"]), step_wise=True)


def test_openrlhf_makes_an_experience_of_our_sequence(driver: PoolDriver, ends: Ends) -> None:
    base = taken("openrlhf", "openrlhf/utils/agent.py", "AgentExecutorBase", ABC=ABC, abstractmethod=abstractmethod)
    convert = taken(
        "openrlhf",
        "openrlhf/trainer/ppo_utils/samples_generator.py",
        "SamplesGenerator._process_response_into_experience",
        torch=torch,
        Experience=SimpleNamespace,
    )._process_response_into_experience
    ends([{"finish_reason": "length"}])
    with installed("openrlhf.utils.agent", **vars(base)):
        executor = agent_executor(driver, lambda rollout, label: float(label))()
    assert isinstance(executor, base.AgentExecutorBase)
    sampling = SimpleNamespace(temperature=0.5, top_p=1.0, max_tokens=None)
    given = {"hf_tokenizer": None, "llm_engine": None, "images": None}
    output = asyncio.run(executor.execute("1 + 1?", "2", sampling, 64, **given))
    experience = convert(None, output, max_len=64)
    assert experience.sequences.tolist() == [[1, 2, 3, 4]]
    assert experience.action_mask.tolist() == [[0, 1, 1]]
    assert experience.rollout_log_probs.tolist() == [[0.0, -0.5, -0.25]]
    assert (experience.rewards.tolist(), experience.truncated.tolist()) == ([2.0], [True])


class Interaction:
    """AReaL's other form of a trajectory."""


@pytest.mark.parametrize("ended", [{}, FORK])
def test_areal_takes_our_trajectory(driver: PoolDriver, ends: Ends, ended: dict[str, Any]) -> None:
    check = taken(
        "areal",
        "areal/infra/workflow_executor.py",
        "check_trajectory_format",
        torch=torch,
        logging=SimpleNamespace(getLogger=logging.getLogger),
        InteractionWithTokenLogpReward=Interaction,
        is_multi_modal_key=lambda key: False,
    ).check_trajectory_format
    concat = taken(
        "areal",
        "areal/utils/data.py",
        "concat_padded_tensors",
        "_pad_cat_dim0",
        torch=torch,
        F=torch.nn.functional,
        is_multi_modal_key=lambda key: False,
        get_batch_size=len,
    ).concat_padded_tensors
    ends([ended])
    trajectory = asyncio.run(ARealPoolWorkflow(driver, lambda *_: 1.0).arun_episode(None, {"messages": PROMPT}))
    assert trajectory is not None
    assert check(trajectory)
    together = concat([trajectory, trajectory])
    assert together["input_ids"].shape[0] == 2 * trajectory["input_ids"].shape[0]
    # A list of them, as an earlier form of ours was, is refused.
    with pytest.raises(ValueError, match="Expected data to be None or dict"):
        check([trajectory])


def test_areal_rejects_what_was_not_run(driver: PoolDriver, ends: Ends) -> None:
    ends([failed()], [failed()])
    assert asyncio.run(ARealPoolWorkflow(driver, lambda *_: 1.0).arun_episode(None, {"messages": PROMPT})) is None


def test_miles_validates_our_samples(driver: PoolDriver, ends: Ends) -> None:
    known: dict[str, Any] = {"dataclass": dataclass, "field": field, "Enum": Enum}
    sample_type = taken("miles_rl", "miles/utils/types.py", "Sample", **known).Sample
    output_type = taken("miles_rl", "miles/rollout/base_types.py", "RolloutFnTrainOutput", **known).RolloutFnTrainOutput
    ends([{}, FORK])
    group = [sample_type(group_index=0, index=n, prompt=PROMPT) for n in range(2)]
    source = SimpleNamespace(get_samples=lambda count: [group], add_samples=None)
    arguments = SimpleNamespace(
        rollout_batch_size=1, rollout_temperature=1.0, rollout_top_p=1.0, rollout_max_response_len=9
    )
    with installed("miles.rollout.base_types", RolloutFnTrainOutput=output_type):
        output = rollout_function(driver, lambda rollout: 0.5)(arguments, 0, source)
    (filled,) = output.samples
    assert [sample.index for sample in filled] == [0, 1, 1]
    for sample in filled:
        sample.validate()
        assert sample.get_reward_value(SimpleNamespace(reward_key=None)) == 0.5
        assert sample.status is sample_type.Status.COMPLETED
        assert sample_type.from_dict(sample.to_dict()).tokens == sample.tokens


def test_what_trains_one_sequence_refuses_a_fork(driver: PoolDriver, ends: Ends) -> None:
    ends([FORK])
    with pytest.raises(ExportRefused, match="2 samples"):
        asyncio.run(SkyRLPoolGenerator(driver, lambda *_: 0.0).generate({"prompts": [PROMPT]}))
