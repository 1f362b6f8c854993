"""A worker's settings. Names without the prefix ROLLOUTPOOL_ are protocol v1's own and mean what they mean there."""

import math
from typing import Annotated, Literal

from pydantic import Field, field_validator
from pydantic_settings import NoDecode

from rolloutpool_common.process.settings import ActorSettings, Names
from rolloutpool_common.security.targets import Targets
from rolloutpool_worker.capabilities.engines.settings import EngineSettings
from rolloutpool_worker.capabilities.foreign_environments.settings import ForeignEnvironmentSettings
from rolloutpool_worker.capabilities.grading.settings import GraderSettings
from rolloutpool_worker.capabilities.tracing.settings import TracingSettings


class WorkerSettings(EngineSettings, ForeignEnvironmentSettings, GraderSettings, TracingSettings, ActorSettings):
    """How one worker process runs. Unset `allowed_targets` mean loopback."""

    worker_slots: int = Field(default=256, ge=1, le=2000)
    """Rollouts that this process runs at once. It raises its limit of open files as far as it may, and warns where
    slots + 200 is more."""
    drain_seconds: float = Field(default=30.0, ge=0)
    """How long a worker waits for model calls in flight after SIGTERM."""
    tokenizers: Names = ()
    """Loaded at start, before work is taken: `name` or `name@revision`, separated by commas."""
    trust_remote_code_for: Names = ()
    """Tokenizers whose own Python code may run, if `TOKENIZER_TRUST_REMOTE_CODE` is true as well."""
    warm_up_seconds: float = Field(default=30.0, ge=0)
    """How long a starting worker loads the tokenizers of live batches before it takes work without the rest."""
    tokenizer_cache_size: int = Field(default=5, ge=1, validation_alias="TOKENIZER_CACHE_SIZE")
    """Tokenizers kept in memory."""
    tokenizer_trust_remote_code: bool = Field(default=False, validation_alias="TOKENIZER_TRUST_REMOTE_CODE")
    """Whether tokenizers that `ROLLOUTPOOL_TRUST_REMOTE_CODE_FOR` names may run code of their own."""
    template_cpu_seconds: float = Field(default=1.0, gt=0)
    """CPU time that one render of a chat template may take, and 0.5 s more for each million characters; past it the
    rollout is refused."""
    http_client_timeout: float = Field(default=300.0, gt=0, validation_alias="HTTP_CLIENT_TIMEOUT")
    """Longest wait for one model call, seconds; one whose other machine is gone ends after 60."""
    turn_client: Literal["httptools", "httpx"] = "httptools"
    """What speaks HTTP when a turn is asked; `httpx` costs more CPU, and understands more of what servers get wrong."""
    max_reply_mb: float = Field(default=64.0, gt=0)
    """Largest reply of a trainer, MB."""
    max_reply_objects: int = Field(default=200_000, ge=1)
    """JSON objects in it at the most; they are parsed while the rollouts beside it wait."""
    tool_timeout: float = Field(default=60.0, gt=0)
    """Longest wait for one tool call, seconds."""
    max_tool_calls: int = Field(default=64, ge=1)
    """Tool calls that one turn may make; with more, none is run and the rollout fails (`tool_error`, kind `policy`)."""
    max_tool_arguments_kb: int = Field(default=1024, ge=1)
    """Largest arguments of one tool call; with larger ones the tool is not called, and the policy reads why."""
    max_tool_result_kb: int = Field(default=256, ge=1)
    """What the policy is shown of one tool's result; a longer one is cut, with a mark that says so."""
    isolated_tools: int = Field(default=4, ge=1, le=256)
    """Child processes for isolated tools at the most, from 22 MB each; further calls of such tools wait."""
    tool_blocked_seconds: float = Field(default=1.0, gt=0)
    """A tool that holds the event loop for longer is named in log, warnings and metrics."""
    tool_memory_growth_mb: int = Field(default=256, ge=1)
    """Tools during whose calls the process's memory grew by more are named as well."""
    trainer_attempts: int = Field(default=5, ge=1, le=20)
    """Calls per turn at the most, while the trainer is unreachable or overloaded (batch API)."""
    infra_retries: int = Field(default=3, ge=0, le=100)
    """How often a rollout goes back into the queue after a failure that the policy can't cause (batch API)."""
    trainer_down_timeout: float = Field(default=600.0, ge=0)
    """Seconds that a rollout waits, in all, for a trainer's port that refuses connections (batch API)."""
    plugins: Names = ()
    """Modules that register tools, agents, termination strategies, environments or graders, separated by commas."""
    calculator_delay_ms: Annotated[tuple[float, float], NoDecode] = Field(
        default=(0.0, 0.0), validation_alias="CALCULATOR_DELAY_MS"
    )
    """Simulates slow tools: `50` or `10-100` delays the calculator by so many ms."""

    @property
    def targets(self) -> Targets:
        """Hosts that this worker may be made to call."""
        return Targets.parse(self.allowed_targets) if self.allowed_targets else Targets.loopback()

    @field_validator("calculator_delay_ms", mode="before")
    @classmethod
    def _delay(cls, value: object) -> object:
        if not isinstance(value, str | int | float):
            return value
        low, dash, high = str(value).partition("-")
        try:
            delay = (float(low), float(high) if dash else float(low))
        except ValueError:
            raise ValueError(f"CALCULATOR_DELAY_MS must be like 50 or 10-100, got {value!r}") from None
        if not 0 <= delay[0] <= delay[1] < math.inf:
            raise ValueError(f"CALCULATOR_DELAY_MS must rise from 0 or more, got {value!r}")
        return delay
