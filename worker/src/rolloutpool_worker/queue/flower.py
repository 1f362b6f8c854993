"""`python -m rolloutpool_worker.queue.flower`: Flower shows this pool's tickets, read-only and with a password.

Flower gets the broker's URL and the password by environment, not by command line, where `ps` would show them.
"""

import os
import sys

from pydantic import Field, SecretStr

from rolloutpool_common.process.settings import ProcessSettings, SettingsInvalid, refuse_start
from rolloutpool_common.queue.celery_app import make_celery
from rolloutpool_common.store import StoreMisaddressed, check_addresses


class FlowerSettings(ProcessSettings):
    """How the Flower process runs."""

    flower_host: str = "127.0.0.1"
    """Address to listen on."""
    flower_port: int = Field(default=5555, ge=0, le=65535)
    """TCP port; 0 picks a free one."""
    flower_auth: SecretStr = Field(examples=["user:password"])
    """`user:password`; Flower can read every ticket, so it is never open. `rolloutpool up` makes one and says where."""


def main() -> None:
    """Run Flower until SIGTERM."""
    try:
        settings = FlowerSettings.from_environment()
        check_addresses(settings.redis_urls)
    except (SettingsInvalid, StoreMisaddressed) as error:
        sys.exit(refuse_start("flower", error))
    os.environ["FLOWER_BASIC_AUTH"] = settings.flower_auth.get_secret_value()
    # Flower is imported only now, so that wrong settings are reported at once.
    from rolloutpool_worker.queue.flower_compat import count_under_one_name

    count_under_one_name()
    app = make_celery(settings.celery_url)
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
