"""The API's settings. Names without the prefix ROLLOUTPOOL_ are protocol v1's own and mean what they mean there."""

from functools import cached_property
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, field_validator, model_validator
from pydantic_settings import NoDecode

from rolloutpool_common.process.settings import ActorSettings
from rolloutpool_common.security.api_keys import ApiKey, KeyQuota, parse_keys, parse_quota
from rolloutpool_common.security.targets import Network, Targets, is_loopback, parse_networks


class ApiSettings(ActorSettings):
    """How one API process runs. Unset `allowed_targets` mean loopback if the API listens there, else no host."""

    rollout_server_port: int = Field(default=9000, ge=0, le=65535, validation_alias="ROLLOUT_SERVER_PORT")
    """TCP port; 0 picks a free one."""
    api_host: str = "127.0.0.1"
    """Address to listen on; `0.0.0.0` listens on all. Beyond loopback, keys and a secrets file are required."""
    max_concurrent_rollouts: int = Field(default=100, ge=1, validation_alias="MAX_CONCURRENT_ROLLOUTS")
    """Synchronous v1 rollouts that one API process runs at once; further ones wait."""
    rollout_timeout_seconds: float = Field(default=600.0, gt=0, le=604_800, validation_alias="ROLLOUT_TIMEOUT_SECONDS")
    """Deadline of a synchronous rollout, in seconds from when it got its place among these."""
    max_body_mb: int = Field(default=64, ge=1)
    """Largest request body, MB; larger ones get 413. Bodies from 1 MB on are read in a process of their own, which
    takes 107 MB and usually 4 to 6 times the body."""
    head_seconds: float = Field(default=10.0, gt=0, le=3600)
    """How long a connection may take to send the head of a request; then it gets 408."""
    min_upload_kb: float = Field(default=100.0, gt=0)
    """kB per second at which a body must come on average after its first 20 s; slower ones get 408."""
    max_messages: int = Field(default=10_000, ge=1)
    """Messages that a rollout may begin with."""
    max_open: int = Field(default=200_000, ge=1)
    """Rollouts that may be accepted and not ended; further ones get 429."""
    reserve_kb: int = Field(default=64, ge=0)
    """kB to keep free in Redis for each open rollout of a run of which nothing is known; of others it is learnt."""
    annotation_kb: int = Field(default=16, ge=0, le=65_536)
    """kB per rollout that a batch's annotations may take in Redis, kept free for open rollouts too. 0 takes none."""
    attachment_kb: int = Field(default=2048, ge=0, le=1_048_576)
    """kB that the attachments of a rollout may take in Redis, compressed; kept free per open rollout whose batch asks
    for some. 0 keeps none."""
    retention_hours: float = Field(default=24.0, gt=0, le=8760)
    """How long after its end a batch is kept, with results, stream and idempotency key."""
    stalled_seconds: float = Field(default=60.0, ge=10, le=86_400)
    """A worker whose process exists, but that sends no heartbeat for so long, loses its rollouts to others."""
    door_url: str = "http://127.0.0.1:9100"
    """Address under which programs reach a door (docs/agents.md); what is told to them begins with it."""
    paused_seconds: float = Field(default=3600.0, ge=10, le=604_800)
    """How long a run may be paused; then its batches are cancelled."""
    api_keys_text: str = Field(default="", repr=False, validation_alias="ROLLOUTPOOL_API_KEYS")
    """Entries as `rolloutpool make-key` prints them, separated by commas; required beyond loopback."""
    api_keys_file: Path | None = None
    """Further entries, one a line; read again when it changes."""
    guest_quota_text: str = Field(default="", validation_alias="ROLLOUTPOOL_GUEST_QUOTA")
    """What all callers without a key may hold together, like `open=500,bytes=100mb`; empty sets no limit."""
    v1_networks: Annotated[tuple[Network, ...], NoDecode] = ()
    """Networks from which `POST /rollout` and `GET /tools` need no key if the API listens beyond loopback."""

    @field_validator("v1_networks", mode="before")
    @classmethod
    def _are_networks(cls, value: object) -> object:
        return parse_networks(value) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _is_safe(self) -> Self:
        """Checks settings that only make sense together; raises ValueError for what can't be used."""
        keys, _ = self.api_keys, self.guest_quota
        if is_loopback(self.api_host):
            return self
        if not keys:
            raise ValueError(
                f"ROLLOUTPOOL_API_KEYS is not set, and with ROLLOUTPOOL_API_HOST={self.api_host} anybody "
                "could use this API: make a key with `rolloutpool make-key NAME`, or listen on 127.0.0.1"
            )
        if self.secrets_file is None:
            raise ValueError(
                "ROLLOUTPOOL_SECRETS_FILE is not set, and beyond loopback it is needed to keep callers' secrets: make "
                "one with `rolloutpool make-secrets-key > FILE && chmod 600 FILE`, for API and workers alike"
            )
        return self

    @cached_property
    def api_keys(self) -> tuple[ApiKey, ...]:
        """Every key that this API knows at its start; raises ValueError for an entry that can't be read."""
        return self.read_keys()

    def read_keys(self) -> tuple[ApiKey, ...]:
        """Reads every key, with those of the file as it is now; raises ValueError for an entry that can't be read."""
        try:
            text = self.api_keys_file.read_text() if self.api_keys_file else ""
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"ROLLOUTPOOL_API_KEYS_FILE cannot be read ({type(error).__name__})") from None
        found: list[ApiKey] = []
        for name, entries in (("ROLLOUTPOOL_API_KEYS", self.api_keys_text), ("ROLLOUTPOOL_API_KEYS_FILE", text)):
            try:
                found += parse_keys(entries)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
        return tuple(found)

    @cached_property
    def guest_quota(self) -> KeyQuota:
        """Returns what all callers without a key may hold together; raises ValueError for what is no quota."""
        try:
            return parse_quota(self.guest_quota_text.replace(",", " ").split())
        except ValueError as error:
            raise ValueError(f"ROLLOUTPOOL_GUEST_QUOTA: {error}") from None

    @property
    def reserve_bytes(self) -> int:
        """Memory that is kept free for each open rollout."""
        return (self.reserve_kb + self.annotation_kb) * 1024

    @property
    def attachment_bytes(self) -> int:
        """Returns what the attachments of a rollout may take."""
        return self.attachment_kb * 1024

    @cached_property
    def targets(self) -> Targets:
        """Hosts that the pool may be made to call."""
        if self.allowed_targets:
            return Targets.parse(self.allowed_targets)
        return Targets.loopback() if is_loopback(self.api_host) else Targets.none()
