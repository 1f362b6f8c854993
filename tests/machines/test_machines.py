"""A pool on five machines, as network namespaces: what it does when packets are lost, hosts are cut off, and one dies.

`make test-machines` runs it; it needs root, iproute2 and nftables.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from tests.machines.network import HERE, Machine, network

from rolloutpool_common.outcomes import RolloutStatus
from rolloutpool_common.rendering import TINY, ChatTokenizer
from rolloutpool_common.security.api_keys import KeyScope, make_key
from rolloutpool_trainer import RolloutClient, callback_app
from rolloutpool_trainer.endpoint.app import CallbackApp
from rolloutpool_trainer.endpoint.server import serve_callback
from rolloutpool_trainer.local.redis_server import find_server
from rolloutpool_trainer.testing import ScriptedPolicy, calculator_prompts

pytestmark = [
    pytest.mark.skipif(
        os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("nft"),
        reason="namespaces need root, iproute2 and nftables: make test-machines",
    ),
    pytest.mark.timeout(300),
    pytest.mark.slow,
]
COMMAND = Path(sys.executable).with_name("rolloutpool")
ROLLOUTS = 240
LOSS = 2
"""Percent of the packets that come to each host."""
DELAY_MS = 10
CUT_SECONDS = 12.0
"""Longer than it takes until a worker is declared dead whose parent is away too."""


@dataclass
class Pool:
    """A pool, and the trainer that it calls on the host of the tests."""

    hosts: dict[str, Machine]
    client: RolloutClient
    app: CallbackApp
    trainer: str


def until(true: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.2)


def alive(client: RolloutClient) -> int:
    with suppress(Exception):
        return sum(worker["alive"] for worker in client.workers())
    return 0


@pytest.fixture
def pool(tmp_path: Path, tokenizer: ChatTokenizer) -> Iterator[Pool]:
    key, entry = make_key("machines", [KeyScope.ADMIN])
    secrets = tmp_path / "secrets.keys"
    made = subprocess.run([COMMAND, "make-secrets-key"], capture_output=True, text=True, check=True)
    secrets.write_text(made.stdout)
    secrets.chmod(0o400)
    with network(tmp_path, "redis", "api", "worker1", "worker2") as hosts:
        redis, api = hosts["redis"].address, hosts["api"].address
        common = {
            "ROLLOUTPOOL_REDIS_URL": f"redis://{redis}:6379/0",
            "ROLLOUTPOOL_SECRETS_FILE": str(secrets),
            "ROLLOUTPOOL_ALLOWED_TARGETS": f"{HERE}/32",
            "HF_HUB_OFFLINE": "1",
        }
        options = ["--bind", redis, "--protected-mode", "no", "--dir", str(tmp_path), "--appendonly", "yes"]
        options += ["--appendfsync", "always", "--save", "", "--maxmemory", "1gb", "--maxmemory-policy", "noeviction"]
        hosts["redis"].start("redis", [find_server(), *options], {})
        served = {"ROLLOUTPOOL_API_HOST": api, "ROLLOUT_SERVER_PORT": "9000", "ROLLOUTPOOL_API_KEYS": entry.entry()}
        hosts["api"].start("api", [sys.executable, "-m", "rolloutpool_api"], {**common, **served})
        slots = {"ROLLOUTPOOL_WORKER_SLOTS": "12", "ROLLOUTPOOL_TOKENIZERS": TINY}
        for name in ("worker1", "worker2"):
            command = [sys.executable, "-m", "rolloutpool_worker", "--processes", "1"]
            hosts[name].start(name, command, {**common, **slots})
        url = f"http://{api}:9000"

        def answers() -> bool:
            with suppress(httpx.HTTPError):
                return httpx.get(f"{url}/livez", timeout=2).status_code == 200
            return False

        until(answers)
        app = callback_app(ScriptedPolicy(tokenizer, latency=1.5), tokenizer=tokenizer)
        with RolloutClient(url, key, timeout=240) as client, serve_callback(app, [0], HERE) as trainer:
            until(lambda: alive(client) == 2)
            yield Pool(hosts, client, app, trainer.url)


def test_what_goes_wrong_between_machines_loses_nothing(pool: Pool, capsys: pytest.CaptureFixture[str]) -> None:
    hosts, client = pool.hosts, pool.client
    delayed = [host.delay(DELAY_MS) for host in hosts.values()]
    for host in hosts.values():
        host.lose(LOSS)
    prompts = [{"messages": [{"role": "user", "content": text}]} for text in calculator_prompts(ROLLOUTS, seed=3)]
    batch = client.submit(prompts, defaults={"tokenizer_name": TINY, "max_turns": 6}, trainer=pool.trainer)

    def ended() -> int:
        with suppress(Exception):
            return batch.status().counts[RolloutStatus.COMPLETED]
        return 0

    told = [f"netem: {all(delayed)}; {LOSS} % of the packets lost"]
    for name, share in (("worker1", 0.1), ("redis", 0.3), ("api", 0.45)):
        until(lambda share=share: ended() >= share * ROLLOUTS, 120)  # type: ignore[misc]
        hosts[name].cut()
        time.sleep(CUT_SECONDS)
        hosts[name].join()
        told.append(f"{name} cut off for {CUT_SECONDS:g} s at {share:.0%}")
    until(lambda: ended() >= 0.6 * ROLLOUTS, 120)
    assert ended() < ROLLOUTS
    hosts["worker2"].die()
    told.append("worker2 lost at 60%")
    results = list(batch.results())
    assert sorted(result.index for result in results) == list(range(ROLLOUTS))
    assert {result.status for result in results} == {RolloutStatus.COMPLETED}, [
        one.failure for one in results if one.failure
    ]
    assert pool.app.sampling_log.repeated() == {}
    for result in results:
        session = pool.app.get_session(result.rollout_id, result.uid)
        assert session.mismatches == 0
        assert [one.response_ids for one in result.samples] == [one.response_ids for one in session.samples]
        assert [one.response_mask for one in result.samples] == [one.response_mask for one in session.samples]
    attempts = sum(result.attempt > 1 for result in results)
    assert attempts
    with capsys.disabled():
        print(f"\n{'; '.join(told)}: {ROLLOUTS} of {ROLLOUTS} completed, {attempts} went on elsewhere")
