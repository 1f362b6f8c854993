"""`python -m rolloutpool_worker.queue.flower`: Flower over this pool's tickets, behind a password and read-only.

The broker's URL and the password reach Flower by environment, never by command line, where `ps` would show them.
"""

import os
import sys

from pydantic import Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from rolloutpool_common.queue.celery_app import make_celery

__all__ = ["FlowerSettings", "main"]


class FlowerSettings(BaseSettings):
    """Settings of the Flower process."""

    model_config = SettingsConfigDict(env_prefix="ROLLOUTPOOL_")

    redis_url: SecretStr
    broker_url: SecretStr | None = None
    """Celery's Redis, where it is another one."""
    flower_host: str = "127.0.0.1"
    flower_port: int = Field(default=5555, ge=0, le=65535)
    flower_auth: SecretStr
    """`user:password`; Flower can read every ticket, so it is never open."""


def main() -> None:
    """Runs Flower until SIGTERM."""
    try:
        settings = FlowerSettings()
    except ValidationError as error:
        for fault in error.errors(include_url=False, include_input=False):
            print(f"rolloutpool flower: ROLLOUTPOOL_{str(fault['loc'][0]).upper()}: {fault['msg']}", file=sys.stderr)
        sys.exit(2)
    os.environ["FLOWER_BASIC_AUTH"] = settings.flower_auth.get_secret_value()
    app = make_celery((settings.broker_url or settings.redis_url).get_secret_value())
    app.start(
        [
            "flower",
            f"--address={settings.flower_host}",
            f"--port={settings.flower_port}",
            "--read_only=True",
            "--purge_offline_workers=60",
            "--max_tasks=20000",
            "--task_runtime_metric_buckets=1,5,15,60,300,900",
        ]
    )


if __name__ == "__main__":
    main()
