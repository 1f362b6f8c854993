"""The API's settings, all from the environment; a field's name is its variable's name.

Names without the prefix are protocol v1's own and mean what they mean there.
"""

from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from rolloutpool_common.errors import RolloutPoolError
from rolloutpool_common.process.logs import LogFormat
from rolloutpool_common.security.api_keys import ApiKey, parse_keys
from rolloutpool_common.security.targets import ALLOWED_TARGETS, Network, Targets, is_loopback, parse_networks

__all__ = ["Settings", "SettingsInvalid"]

_SCHEMES = ("redis://", "rediss://", "unix://")


class SettingsInvalid(RolloutPoolError):
    """The environment does not configure the API."""


class Settings(BaseSettings):
    """How one API process runs."""

    model_config = SettingsConfigDict(env_ignore_empty=True, frozen=True, hide_input_in_errors=True)

    rollout_server_port: int = Field(default=9000, ge=0, le=65535)
    """TCP port; 0 picks a free one."""
    rolloutpool_api_host: str = "127.0.0.1"
    rolloutpool_redis_url: str = Field(repr=False)
    rolloutpool_broker_url: str | None = Field(default=None, repr=False)
    """Celery's Redis, where it is another one."""
    rolloutpool_tickets_of: int = Field(default=8, ge=1, le=16)
    """Rollouts per Celery message at the most; the workers need the same."""
    max_concurrent_rollouts: int = Field(default=100, ge=1)
    """Synchronous rollouts (`POST /rollout`) that run at once for this process; further ones wait."""
    rollout_timeout_seconds: float = Field(default=600.0, gt=0, le=604_800)
    """Deadline of a synchronous rollout, from its submission."""
    rolloutpool_max_body_mb: int = Field(default=256, ge=1)
    rolloutpool_max_messages: int = Field(default=10_000, ge=1)
    """Messages that a rollout may begin with."""
    rolloutpool_max_open: int = Field(default=200_000, ge=1)
    """Rollouts that may be accepted and not ended; more are refused with 429."""
    rolloutpool_reserve_kb: int = Field(default=64, ge=0)
    """Memory that is kept free in Redis for journal and result of each open rollout; without it, 503."""
    rolloutpool_retention_hours: float = Field(default=24.0, gt=0, le=8760)
    """How long after its end a batch is kept, with results, stream and idempotency key."""
    rolloutpool_api_keys: str = Field(default="", repr=False)
    """Entries as `rolloutpool make-key` prints them; without any, the API listens on loopback only."""
    rolloutpool_api_keys_file: Path | None = None
    """Further entries, one a line."""
    rolloutpool_v1_networks: Annotated[tuple[Network, ...], NoDecode] = ()
    """From where `POST /rollout` and `GET /tools` need no key, where the API listens on other than loopback."""
    rolloutpool_allowed_targets: str = ""
    """Hosts that may be called, see `rolloutpool_common.security.targets`; unset: loopback's if the API is there."""
    rolloutpool_secrets_file: Path | None = None
    """Keys with which secrets are kept in Redis; the workers need the same."""
    rolloutpool_log_level: Literal["debug", "info", "warning", "error"] = "info"
    rolloutpool_log_format: LogFormat = "auto"
    """`auto`: console on a terminal, JSON elsewhere."""

    @field_validator("rolloutpool_redis_url", "rolloutpool_broker_url")
    @classmethod
    def _is_redis(cls, value: str | None) -> str | None:
        # Without the value: it may hold a password.
        if value is not None and not value.startswith(_SCHEMES):
            raise ValueError(f"must start with one of {', '.join(_SCHEMES)}")
        return value

    @field_validator("rolloutpool_v1_networks", mode="before")
    @classmethod
    def _are_networks(cls, value: object) -> object:
        return parse_networks(value) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _is_safe(self) -> Self:
        """Raises ValueError where what is said nowhere else, or only together, cannot be used."""
        keys, _ = self.api_keys, self.targets
        if is_loopback(self.rolloutpool_api_host):
            return self
        if not keys:
            raise ValueError(
                f"ROLLOUTPOOL_API_KEYS is not set, and with ROLLOUTPOOL_API_HOST={self.rolloutpool_api_host} anybody "
                "could use this API: make a key with `rolloutpool make-key NAME`, or listen on 127.0.0.1"
            )
        if self.rolloutpool_secrets_file is None:
            raise ValueError(
                "ROLLOUTPOOL_SECRETS_FILE is not set, and beyond loopback it is needed to keep callers' secrets: make "
                "one with `rolloutpool make-secrets-key > FILE && chmod 600 FILE`, for API and workers alike"
            )
        return self

    @cached_property
    def api_keys(self) -> tuple[ApiKey, ...]:
        """Every key that is known; raises ValueError for what is no entry."""
        try:
            text = self.rolloutpool_api_keys_file.read_text() if self.rolloutpool_api_keys_file else ""
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"ROLLOUTPOOL_API_KEYS_FILE cannot be read ({type(error).__name__})") from None
        found: list[ApiKey] = []
        for name, entries in (("ROLLOUTPOOL_API_KEYS", self.rolloutpool_api_keys), ("ROLLOUTPOOL_API_KEYS_FILE", text)):
            try:
                found += parse_keys(entries)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
        return tuple(found)

    @cached_property
    def targets(self) -> Targets:
        """Hosts that the pool may be made to call; raises ValueError for what is no entry."""
        if not self.rolloutpool_allowed_targets:
            return Targets.loopback() if is_loopback(self.rolloutpool_api_host) else Targets.nobody()
        try:
            return Targets.parse(self.rolloutpool_allowed_targets)
        except ValueError as error:
            raise ValueError(f"{ALLOWED_TARGETS}: {error}") from None

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
            lines = [_explain(item["loc"], item["type"], item["msg"]) for item in error.errors()]
            raise SettingsInvalid("\n".join(lines)) from None


def _explain(at: tuple[int | str, ...], kind: str, message: str) -> str:
    text = message.removeprefix("Value error, ")
    if not at:
        return text
    name = str(at[0]).upper()
    if kind == "missing":
        return f"{name} is not set: export it, for example {name}=redis://127.0.0.1:6379/0"
    return f"{name}: {text}"
