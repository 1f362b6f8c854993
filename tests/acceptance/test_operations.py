"""What operators ask, on real processes: preflight, by client and by command."""

import socket
import subprocess
import sys

from tests.support.served_policy import ServedPolicy

from rolloutpool_trainer import LocalPool, RolloutClient


def test_a_preflight_tells_dead_ports_from_live_ones(
    pool: LocalPool, client: RolloutClient, trainer: ServedPolicy
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        dead = f"http://127.0.0.1:{unused.getsockname()[1]}"
        found = client.preflight([*trainer.urls, dead])
        command = [
            sys.executable,
            "-c",
            "from rolloutpool_trainer.cli import app; app()",
            "preflight",
            trainer.urls[0],
            dead,
        ]
        told = subprocess.run([*command, "--url", pool.url], capture_output=True, text=True, check=False)
    assert [(e["server_url"], e["ok"]) for e in found] == [*((url, True) for url in trainer.urls), (dead, False)]
    assert told.returncode == 1
    assert f"ok   {trainer.urls[0]}" in told.stdout
    assert f"FAIL {dead}" in told.stdout
