"""The parent of a machine's workers: `python -m rolloutpool_worker --processes N`.

It runs no rollouts and loads no tokenizer, so nothing that a rollout does can end it.

1. It starts N worker processes and keeps their number: one that ends is started again, after a delay that doubles. They
   are forked by a process that has imported everything (`common/process/fork_server.py`).
2. It tells Redis at once how a worker ended (`common/process/obituaries.py`).
3. The first SIGTERM (or Ctrl-C) drains all workers, the second one hurries them, the third one kills them. A worker
   that has not ended 30 s after its drain time is killed.
4. If a worker's first process refuses to start (exit code 2: it printed why), another start would not help. The parent
   stops the other workers and ends with the same exit code.
5. It also reaps orphans (`common/process/orphans.py`).

If the parent itself dies, the kernel ends its workers. No report comes then, and their lost lifelines tell the rest.
"""

import logging
import signal
import sys

from rolloutpool_common.process.child import Child, ChildSpec, Role
from rolloutpool_common.process.fork_server import ForkServer
from rolloutpool_common.process.obituaries import Obituaries
from rolloutpool_common.process.orphans import reap_orphans
from rolloutpool_common.process.settings import REFUSED
from rolloutpool_common.process.stopping import stop_on_signals
from rolloutpool_common.process.supervisor import Supervisor
from rolloutpool_worker.settings import WorkerSettings

_log = logging.getLogger(__name__)

OPTION = "--processes"


def run_parent(settings: WorkerSettings, processes: int) -> int:
    """Runs workers until a signal ends them, or one of them refuses to start."""
    supervisor = Supervisor(_log.warning)
    obituaries = Obituaries(settings.redis_url.get_secret_value())
    command = [sys.executable, "-m", "rolloutpool_worker"]
    fork_server = ForkServer(command, _log.warning)
    children: list[Child] = []
    reap_orphans(lambda: [pid for child in children if (pid := child.pid) is not None], adopted=fork_server.adopts)
    with stop_on_signals(supervisor.hurry, lambda: _log.info("stopping: workers finish or give back what they run")):
        try:
            obituaries.start()
            for number in range(1, processes + 1):
                spec = ChildSpec(
                    name=f"worker-{number}",
                    role=Role.WORKER,
                    command=command,
                    obituaries=obituaries,
                    fork_server=fork_server,
                    refusal=REFUSED,
                )
                children.append(supervisor.start(spec, ready=True))
            supervisor.wait_first()
        finally:
            # First: a worker that is being forked would hold up the stop until it is there.
            fork_server.stop()
            supervisor.stop()
            obituaries.stop()
    return _exit_code(children)


def _exit_code(children: list[Child]) -> int:
    codes = {child.exit_code for child in children}
    if REFUSED in codes:
        return REFUSED
    # A worker that was still starting ends by the very signal. One that did not run is not at fault.
    return int(not codes <= {0, -signal.SIGTERM, None})
