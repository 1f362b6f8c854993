"""Types of trainers that cannot be installed here, field by field: what an adapter gives must fit, and nothing more.

They are written from the versions that each names, not copied; a field that is not listed is refused. The types of
trainers that can be installed are used themselves, in tests/trainers.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from enum import Enum
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class AgentLoopMetrics(_Strict):
    """verl 0.9.1, verl/experimental/agent_loop/agent_loop.py."""

    generate_sequences: float = 0.0
    tool_calls: float = 0.0
    compute_score: float = 0.0
    num_preempted: int = -1


class AgentLoopOutput(_Strict):
    """verl 0.9.1, verl/experimental/agent_loop/agent_loop.py."""

    prompt_ids: list[int]
    response_ids: list[int]
    response_mask: list[int]
    response_logprobs: list[float] | None = None
    routed_experts: Any = None
    multi_modal_data: dict[str, Any] | None = None
    reward_score: float | None = None
    num_turns: int = 0
    metrics: AgentLoopMetrics
    extra_fields: dict[str, Any] = {}


class AgentLoopBase:
    """verl 0.9.1: `run(self, sampling_params, **kwargs)`."""


class AgentExecutorBase:
    """OpenRLHF 0.11.2, openrlhf/utils/agent.py."""


@dataclass
class SlimeSample:
    """slime at 624b824a8, slime/utils/types.py, `Sample`; as far as rollout functions fill it."""

    class Status(Enum):
        PENDING = "pending"
        COMPLETED = "completed"
        TRUNCATED = "truncated"
        ABORTED = "aborted"
        FAILED = "failed"

    group_index: int | None = None
    index: int | None = None
    rollout_id: int | None = None
    prompt: str | list[dict[str, Any]] = ""
    tokens: list[int] = field(default_factory=list)
    response: str = ""
    response_length: int = 0
    reward: float | dict[str, Any] | None = None
    loss_mask: list[int] | None = None
    rollout_log_probs: list[float] | None = None
    weight_versions: list[str] = field(default_factory=list)
    status: Status = Status.PENDING
    metadata: dict[str, Any] = field(default_factory=dict)

    @staticmethod
    def from_dict(document: dict[str, Any]) -> "SlimeSample":
        names = {part.name for part in fields(SlimeSample)}
        assert set(document) <= names, set(document) - names
        return SlimeSample(**{**document, "status": SlimeSample.Status(document["status"])})


@dataclass
class RolloutFnTrainOutput:
    """slime at 624b824a8, slime/rollout/base_types.py."""

    samples: list[list[SlimeSample]]
    metrics: dict[str, Any] | None = None


@contextmanager
def installed(path: str, **names: Any) -> Iterator[SimpleNamespace]:
    """Lets a module of this path be imported, with these names in it."""
    parts = path.split(".")
    with pytest.MonkeyPatch.context() as patch:
        for end in range(1, len(parts) + 1):
            module = ModuleType(".".join(parts[:end]))
            patch.setitem(sys.modules, module.__name__, module)
        for name, value in names.items():
            setattr(sys.modules[path], name, value)
        yield SimpleNamespace(**names)
