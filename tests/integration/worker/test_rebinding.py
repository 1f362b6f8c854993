"""DNS rebinding against a worker that runs: the system's resolver gives a trainer's name another address meanwhile.

The worker is in a mount namespace of its own, in which /etc/hosts is a file of this test. `test_transport.py` plays
more answers of a name server, without a process.
"""

import asyncio
import subprocess
from pathlib import Path

import pytest
from tests.integration.worker.test_transport import HERE, THERE, server
from tests.support.pool import opened_pool
from tests.support.worker_process import started_worker

from rolloutpool_common.outcomes import Category
from rolloutpool_worker.policy.resolver import FRESH_SECONDS

NAME = "rebinding.example"
OWN_HOSTS = 'mount --bind "$0" /etc/hosts && exec "$@"'


def may_mount(folder: Path) -> bool:
    """Whether this user may have a namespace in which /etc/hosts is another file."""
    probe = folder / "probe"
    probe.write_text("127.0.0.1 probe.example\n")
    command = ["unshare", "--mount", "sh", "-c", OWN_HOSTS, str(probe), "getent", "hosts", "probe.example"]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


@pytest.mark.slow
async def test_a_name_that_is_rebound_while_a_worker_runs_leads_nowhere(redis_url: str, tmp_path: Path) -> None:
    if not may_mount(tmp_path):
        pytest.skip("this user may not mount a file over /etc/hosts")
    hosts = tmp_path / "hosts"

    def bind(address: str) -> None:
        # Into the same file, because the mount is of that file.
        hosts.write_text(f"127.0.0.1 localhost\n{address} {NAME}\n")

    bind(THERE)
    own_hosts = ["unshare", "--mount", "sh", "-c", OWN_HOSTS, str(hosts)]
    async with server(HERE) as inner, server(THERE, inner.port) as good, opened_pool(redis_url) as pool:
        with started_worker(redis_url, run_by=own_hosts, ROLLOUTPOOL_ALLOWED_TARGETS=f"*,{THERE}") as worker:
            await worker.announced(pool.store)
            shared = {"server_url": f"http://{NAME}:{good.port}"}
            (first,) = await pool.run(shared=shared)
            # The name was called: an empty reply is no turn.
            assert first.failure is not None
            assert first.failure.category is Category.TRAINER_PROTOCOL_ERROR
            assert len(good.heads) == 1

            bind(HERE)
            await asyncio.sleep(FRESH_SECONDS + 1)
            (second,) = await pool.run(shared=shared)
            assert second.failure is not None
            assert second.failure.category is Category.TARGET_REFUSED
            assert "resolves to an address that may not be called" in second.failure.message
        assert len(good.heads) == 1
        assert inner.heads == []
