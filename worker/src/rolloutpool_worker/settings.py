"""What a worker can be told from outside: environment variables, each with its default and meaning.

Protocol v1's own variables keep their names; the pool's begin with ROLLOUTPOOL_.
"""

import math
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from rolloutpool_common.process.logs import LogFormat
from rolloutpool_common.security.targets import Targets

__all__ = ["WorkerSettings"]

Names = Annotated[tuple[str, ...], NoDecode]
"""A comma-separated list."""


class WorkerSettings(BaseSettings):
    """Settings of one worker process."""

    model_config = SettingsConfigDict(env_prefix="ROLLOUTPOOL_", env_file=None, populate_by_name=True)

    redis_url: SecretStr
    """Where the pool's Redis is."""
    broker_url: SecretStr | None = None
    """Celery's Redis, where it is another one; API, workers and Flower must agree."""
    worker_slots: int = Field(default=256, ge=1, le=2000)
    """Rollouts that this process runs at once."""
    secrets_file: Path | None = None
    """Keys that open callers' secrets; the same as the API's."""
    allowed_targets: str = ""
    """Hosts that may be called, see `rolloutpool_common.security.targets`; unset: those on loopback."""
    tickets_of: int = Field(default=8, ge=1, le=16)
    """Rollouts per Celery message at the most, when this worker publishes from the outbox."""
    drain_seconds: float = Field(default=30.0, ge=0)
    """How long model calls in flight are awaited after SIGTERM."""
    tokenizers: Names = ()
    """Tokenizers to load at start (name or name@revision)."""
    allowed_tokenizers: Names = ()
    """Names or directories that rollouts may ask for; empty allows any."""
    trust_remote_code_for: Names = ()
    """Tokenizer names whose own Python code may run; needs TOKENIZER_TRUST_REMOTE_CODE too."""
    tokenizer_cache_size: int = Field(default=5, ge=1, validation_alias="TOKENIZER_CACHE_SIZE")
    tokenizer_trust_remote_code: bool = Field(default=False, validation_alias="TOKENIZER_TRUST_REMOTE_CODE")
    http_client_timeout: float = Field(default=300.0, gt=0, validation_alias="HTTP_CLIENT_TIMEOUT")
    """Seconds for one model call."""
    max_reply_mb: float = Field(default=64.0, gt=0)
    """Largest reply of a trainer that is read."""
    tool_timeout: float = Field(default=60.0, gt=0)
    """Seconds for one tool call."""
    trainer_attempts: int = Field(default=5, ge=1, le=20)
    """Model calls per turn at the most, where the trainer is unreachable or overloaded (batch API only)."""
    infra_retries: int = Field(default=3, ge=0, le=100)
    """Times that a rollout is put back into the queue after a failure that the policy cannot cause (batch API only)."""
    port_patience: float = Field(default=600.0, ge=0)
    """Seconds that a rollout waits for a trainer's port that refuses connections, before it fails (batch API only)."""
    plugins: Names = ()
    """Modules that register tools, agents or termination strategies when they are imported."""
    calculator_delay_ms: Annotated[tuple[float, float], NoDecode] = Field(
        default=(0.0, 0.0), validation_alias="CALCULATOR_DELAY_MS"
    )
    """The calculator waits so long at random, `0` or `10-100`, to stand in for slow tools."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: LogFormat = "auto"
    """`auto`: console on a terminal, JSON elsewhere. The API takes the same words: a pool has one environment."""

    @property
    def celery_url(self) -> str:
        """Where tickets wait."""
        return (self.broker_url or self.redis_url).get_secret_value()

    @field_validator("tokenizers", "allowed_tokenizers", "trust_remote_code_for", "plugins", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value

    @property
    def targets(self) -> Targets:
        """Hosts that this worker may be made to call."""
        return Targets.parse(self.allowed_targets) if self.allowed_targets else Targets.loopback()

    @field_validator("secrets_file", mode="before")
    @classmethod
    def _empty_is_unset(cls, value: object) -> object:
        return value or None

    @field_validator("allowed_targets")
    @classmethod
    def _are_targets(cls, value: str) -> str:
        Targets.parse(value)
        return value

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
