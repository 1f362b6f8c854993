"""Says what every process of the pool can be told from outside: environment variables, read once, when it starts.

1. A field `max_open` is read from ROLLOUTPOOL_MAX_OPEN. Protocol v1's own variables keep their names by an alias.
2. `from_environment` reads all of them, or raises `SettingsInvalid`, which names every variable that can't be used.
3. An empty variable counts as one that is not set: a file of Compose passes on what its caller has left empty.
4. `refuse_start` prints such an error for people, one line per variable, and gives the exit code.

Values never appear in an error: a URL may hold a password.
"""

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import parse_qs, quote, urlsplit

from pydantic import BeforeValidator, Field, SecretStr, ValidationError, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from rolloutpool_common.errors import RolloutPoolError
from rolloutpool_common.process.logs import LogFormat, configure_logs
from rolloutpool_common.security.targets import Targets

PREFIX = "ROLLOUTPOOL_"
REFUSED = 2
"""Exit code of a process that can't start with its settings."""
_SCHEMES = ("redis://", "rediss://", "unix://")


def _split(value: object) -> object:
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split)]
"""A list, separated by commas in the environment."""


class SettingsInvalid(RolloutPoolError):
    """The environment does not configure this process."""


def with_authority(url: str, authority: Path | str | None) -> str:
    """Adds the certificate of Redis' authority to a URL, because whatever connects to Redis is given that."""
    query = urlsplit(url).query
    if authority is None or not url.startswith("rediss://") or "ssl_ca_certs" in parse_qs(query):
        return url
    return f"{url}{'&' if query else '?'}ssl_ca_certs={quote(str(authority))}"


class ProcessSettings(BaseSettings):
    """Holds what every process needs: where Redis is."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_ignore_empty=True,
        populate_by_name=True,
        frozen=True,
        hide_input_in_errors=True,
        env_file=None,
    )

    redis_ca: Path | None = None
    """The certificate of the authority that vouches for Redis, in PEM; null trusts those of the system."""
    redis_url: SecretStr = Field(examples=["redis://127.0.0.1:6379/0"])
    """The pool's Redis: `redis://`, `rediss://` or `unix://`."""
    broker_url: SecretStr | None = None
    """Celery's Redis, if it is another one; the same for API, workers and Flower."""

    @field_validator("redis_ca")
    @classmethod
    def _can_be_read(cls, value: Path | None) -> Path | None:
        # OpenSSL would only say later that there is no such file, and not which.
        if value is not None and not os.access(value, os.R_OK):
            raise ValueError("no file that can be read")
        return value

    @field_validator("redis_url", "broker_url")
    @classmethod
    def _is_redis(cls, value: SecretStr | None, info: ValidationInfo) -> SecretStr | None:
        if value is None:
            return None
        url, authority = value.get_secret_value(), info.data.get("redis_ca")
        if not url.startswith(_SCHEMES):
            raise ValueError(f"must start with one of {', '.join(_SCHEMES)}")
        try:
            parts = urlsplit(url)
            one = "," not in f"{parts.hostname}:{parts.port}"
        except ValueError:
            one = False
        if not one:
            raise ValueError("must name one host and port; of several Redis, name the proxy that leads to the primary")
        # redis-py takes what it cannot read for 0, and Celery's workers end.
        if parts.scheme != "unix" and not (re.fullmatch(r"/?[0-9]*", parts.path) and "db" not in parse_qs(parts.query)):
            raise ValueError("must name its database by a number behind the host, like redis://HOST:6379/0")
        return SecretStr(with_authority(url, authority))

    @property
    def celery_url(self) -> str:
        """Returns where tickets wait."""
        return (self.broker_url or self.redis_url).get_secret_value()

    @property
    def redis_urls(self) -> dict[str, str]:
        """Returns each address of a Redis, by its variable."""
        urls = {_variable(name): getattr(self, name) for name in ("redis_url", "broker_url")}
        return {name: url.get_secret_value() for name, url in urls.items() if url is not None}

    @classmethod
    def from_environment(cls) -> Self:
        """Read the environment."""
        try:
            return cls()
        except ValidationError as error:
            lines = [cls._explain(item["loc"], item["type"], item["msg"]) for item in error.errors()]
            raise SettingsInvalid("\n".join(lines)) from None

    @classmethod
    def _explain(cls, at: Sequence[int | str], kind: str, message: str) -> str:
        text = message.removeprefix("Value error, ")
        if not at:
            return text
        name = _variable(str(at[0]))
        if kind == "missing":
            (example,) = cls.model_fields[str(at[0])].examples or ("VALUE",)
            return f"{name} is not set: export it, for example {name}={example}"
        return f"{name}: {text}"


class ActorSettings(ProcessSettings):
    """Holds what API and workers both need."""

    rollouts_per_ticket: int = Field(default=8, ge=1, le=16)
    """Most rollouts that one Celery message brings; none brings more than an eighth of the smallest worker's slots."""
    allowed_targets: str = ""
    """Hosts that the pool may call, separated by commas; empty: loopback, and no host at
    all at an API that listens beyond loopback."""
    secrets_file: Path | None = None
    """File of the keys that encrypt callers' secrets in Redis, one a line. Required
    beyond loopback."""
    v1_tool_servers: bool = False
    """Whether protocol v1's `tool_server_url` is called, as an MCP server."""
    allowed_tokenizers: Names = ()
    """Patterns (`Qwen/*`) of the names and directories that rollouts may ask for. Empty: any at an API on loopback,
    else those that live workers were started with."""
    token_pieces_mb: int = Field(default=16, ge=0, le=4096)
    """MB in Redis for the vocabularies by which people read tokens, kept free too. 0 keeps none."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """`debug`, `info`, `warning` or `error`."""
    log_format: LogFormat = "auto"
    """`json`, `console`, or `auto`: console on a terminal, JSON elsewhere."""

    @field_validator("allowed_targets")
    @classmethod
    def _are_targets(cls, value: str) -> str:
        Targets.parse(value)
        return value

    @field_validator("secrets_file", mode="before")
    @classmethod
    def _empty_is_unset(cls, value: object) -> object:
        return value or None

    @property
    def token_pieces_bytes(self) -> int:
        """Returns what the vocabularies of all tokenizers may take."""
        return self.token_pieces_mb * 2**20

    def start_logging(self) -> None:
        """Send this process's logs to standard error."""
        configure_logs(self.log_level, self.log_format)


def refuse_start(actor: str, error: RolloutPoolError) -> int:
    """Print why a process can't start."""
    for line in error.message.splitlines():
        print(f"rolloutpool {actor}: {line}", file=sys.stderr)
    return REFUSED


def _variable(field: str) -> str:
    """The environment variable of a field, or of an alias, which is the variable itself."""
    return field if field.isupper() else f"{PREFIX}{field.upper()}"
