"""The API's settings, all from the environment; a field's name is its variable's name.

Names without the prefix are protocol v1's own and mean what they mean there.
"""

from typing import Literal

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from rolloutpool_common.errors import RolloutPoolError

__all__ = ["Settings", "SettingsInvalid"]

_SCHEMES = ("redis://", "rediss://", "unix://")


class SettingsInvalid(RolloutPoolError):
    """The environment does not configure the API."""


class Settings(BaseSettings):
    """How one API process runs."""

    model_config = SettingsConfigDict(env_ignore_empty=True, frozen=True)

    rollout_server_port: int = Field(default=9000, ge=0, le=65535)
    """TCP port; 0 picks a free one."""
    rolloutpool_api_host: str = "127.0.0.1"
    rolloutpool_redis_url: str = Field(repr=False)
    rolloutpool_broker_url: str | None = Field(default=None, repr=False)
    """Celery's Redis, where it is another one."""
    max_concurrent_rollouts: int = Field(default=100, ge=1)
    """Synchronous rollouts (`POST /rollout`) that run at once for this process; further ones wait."""
    rollout_timeout_seconds: float = Field(default=600.0, gt=0, le=604_800)
    """Deadline of a synchronous rollout, from its submission."""
    rolloutpool_max_body_mb: int = Field(default=256, ge=1)
    rolloutpool_log_level: Literal["debug", "info", "warning", "error"] = "info"
    rolloutpool_log_format: Literal["auto", "json", "console"] = "auto"
    """`auto`: console on a terminal, JSON elsewhere."""

    @field_validator("rolloutpool_redis_url", "rolloutpool_broker_url")
    @classmethod
    def _is_redis(cls, value: str | None) -> str | None:
        # Without the value: it may hold a password.
        if value is not None and not value.startswith(_SCHEMES):
            raise ValueError(f"must start with one of {', '.join(_SCHEMES)}")
        return value

    @property
    def broker_url(self) -> str:
        """Where tickets are published."""
        return self.rolloutpool_broker_url or self.rolloutpool_redis_url

    @classmethod
    def from_environment(cls) -> "Settings":
        """Raises `SettingsInvalid`, whose message names each variable and what it should be."""
        try:
            return cls()
        except ValidationError as error:
            lines = [_explain(str(item["loc"][0]), item["type"], item["msg"]) for item in error.errors()]
            raise SettingsInvalid("\n".join(lines)) from None


def _explain(field: str, kind: str, message: str) -> str:
    name = field.upper()
    if kind == "missing":
        return f"{name} is not set: export it, for example {name}=redis://127.0.0.1:6379/0"
    return f"{name}: {message.removeprefix('Value error, ')}"
