"""`python -m rolloutpool_worker.capabilities.harness`: one runner until SIGTERM or SIGINT.

Exit codes: 0 stopped as asked, 2 bad settings, no way to run programs here, or a Redis URL that can't be right.
"""

import asyncio
import signal
import sys
from contextlib import suppress

import structlog

from rolloutpool_common.errors import RolloutPoolError
from rolloutpool_common.process.settings import SettingsInvalid, refuse_start
from rolloutpool_common.store import SecretStore, Store, check_addresses
from rolloutpool_worker.capabilities.harness.containers import DockerRuntime
from rolloutpool_worker.capabilities.harness.presets import HARNESSES
from rolloutpool_worker.capabilities.harness.runner import Runner
from rolloutpool_worker.capabilities.harness.runner_settings import RunnerSettings
from rolloutpool_worker.capabilities.harness.runtime import ProcessRuntime, Runtime
from rolloutpool_worker.plugins import import_plugins


class RunnerOff(RolloutPoolError):
    """Say how programs run (ROLLOUTPOOL_RUNNER_PROCESS): `bubblewrap`, `docker`, or `unsafe` on a machine apart."""


async def serve(settings: RunnerSettings, secrets: SecretStore, runtime: Runtime) -> None:
    """Runs programs until a signal."""
    store = Store.open(settings.redis_url.get_secret_value(), secrets=secrets)
    running = asyncio.create_task(Runner(settings, store, runtime).run())
    for number in (signal.SIGTERM, signal.SIGINT):
        # Once: a second signal would leave homes behind, and their places held.
        asyncio.get_running_loop().add_signal_handler(number, lambda: running.cancelling() or running.cancel())
    structlog.stdlib.get_logger(__name__).info("runner runs", slots=settings.runner_slots)
    with suppress(asyncio.CancelledError):
        await running
    await store.close()


def main() -> int:
    """Runs a runner; returns its exit code."""
    try:
        settings = RunnerSettings.from_environment()
        if settings.runner_process == "off":
            raise RunnerOff
        runtime = DockerRuntime(settings) if settings.runner_process == "docker" else ProcessRuntime(settings)
        secrets = SecretStore.load(settings.secrets_file)
        check_addresses(settings.redis_urls)
        import_plugins(settings.plugins)
        HARNESSES.load_entry_points()
    except (SettingsInvalid, RolloutPoolError) as error:
        return refuse_start("runner", error)
    settings.start_logging()
    asyncio.run(serve(settings, secrets, runtime))
    return 0


if __name__ == "__main__":
    sys.exit(main())
