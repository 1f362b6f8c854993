"""Three Redis with Sentinel and HAProxy, by deploy/sentinel, on machines of their own: what a fail-over loses.

1. A trainer submits batch after batch, and notes those that were accepted. Its work runs meanwhile.
2. The primary's process is killed, its machine is lost, or it is cut off from the other two and from their Sentinels
   while API and worker still reach it.
3. The pool goes on with another primary. Of what was accepted, the rollouts that nobody knows any more are counted.

`make test-failover` runs it; it needs root, iproute2 and nftables.
"""

import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import redis
from tests.machines.network import HERE, Machine, network
from tests.machines.test_machines import COMMAND, alive, until
from tests.machines.test_machines import pytestmark as on_machines
from tests.support.redis_server import SERVER

from rolloutpool_common.outcomes import RolloutStatus
from rolloutpool_common.rendering import TINY, ChatTokenizer
from rolloutpool_common.security.api_keys import KeyScope, make_key
from rolloutpool_trainer import RolloutClient, callback_app
from rolloutpool_trainer.endpoint.app import CallbackApp
from rolloutpool_trainer.endpoint.server import serve_callback
from rolloutpool_trainer.errors import NotFound
from rolloutpool_trainer.testing import ScriptedPolicy, calculator_prompts

HAPROXY = shutil.which("haproxy") or shutil.which("/usr/sbin/haproxy")
RECIPE = Path(__file__).parents[2] / "deploy" / "sentinel"
STORES = ("redis1", "redis2", "redis3")
BEFORE_SECONDS, AFTER_SECONDS = 5.0, 10.0
"""How long work comes in before the fault, and after the fail-over."""
GAP_SECONDS = 0.05
"""Between two batches."""
LAG_SECONDS = 3.0
"""What a primary that was cut off may still accept: `min-replicas-max-lag` in redis.conf."""

pytestmark = [*on_machines, pytest.mark.skipif(HAPROXY is None, reason="no haproxy: make test-failover")]


@dataclass
class Accepted:
    """What was promised, and when."""

    batches: dict[str, float] = field(default_factory=dict)
    gap: float = 0.0
    """The longest time between two answers."""


@dataclass
class Stores:
    """Three Redis, each with its Sentinel."""

    machines: dict[str, Machine]

    def primary(self) -> str | None:
        """The one that HAProxy leads to."""
        for name, machine in self.machines.items():
            with suppress(redis.RedisError):
                client = redis.Redis(
                    host=machine.address, password="SECRET", socket_timeout=1, socket_connect_timeout=1
                )
                found = client.info("replication")
                if found["role"] == "master" and found.get("min_slaves_good_slaves", 0):
                    return name
        return None

    def workers_lost(self) -> int:
        """How many workers the pool has declared dead."""
        name = self.primary()
        assert name is not None
        address = self.machines[name].address
        return int(redis.Redis(host=address, password="SECRET").hget("rp:totals", "workers_lost") or 0)

    def watched(self) -> bool:
        """Whether each Sentinel knows all others, and both replicas."""
        for machine in self.machines.values():
            sentinel = redis.Redis(host=machine.address, port=26379, socket_timeout=1, socket_connect_timeout=1)
            try:
                found = sentinel.sentinel_master("pool")
            except redis.RedisError:
                return False
            assert isinstance(found, dict)
            if (found["num-slaves"], found["num-other-sentinels"]) != (2, 2):
                return False
        return True


def recipe(file: str, addresses: dict[str, str], own: str) -> str:
    """A file of the recipe with its accounts and these addresses, as on the machine that has the address `own`."""
    text = re.sub(
        r"^( *)# (user pool|requirepass|masterauth|tcp-check|sentinel auth-pass)",
        r"\1\2",
        (RECIPE / file).read_text(),
        flags=re.M,
    )
    text = re.sub(r"^(bind|replica-announce-ip|sentinel announce-ip) 10\.0\.0\.11$", rf"\1 {own}", text, flags=re.M)
    for number, address in enumerate(addresses.values(), 11):
        text = text.replace(f"10.0.0.{number}", address)
    return text


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[tuple[Stores, dict[str, Machine]]]:
    with network(tmp_path, *STORES, "api", "worker") as machines:
        found = Stores({name: machines[name] for name in STORES})
        addresses = {name: machine.address for name, machine in found.machines.items()}
        for name, machine in found.machines.items():
            folder = tmp_path / name
            folder.mkdir()
            text = recipe("redis.conf", addresses, machine.address)
            text = text.replace("/var/lib/redis", str(folder)).replace("maxmemory 8gb", "maxmemory 1gb")
            follows = "" if name == STORES[0] else f"replicaof {addresses[STORES[0]]} 6379\n"
            (folder / "redis.conf").write_text(f"{text}protected-mode no\n{follows}")
            text = recipe("sentinel.conf", addresses, machine.address).replace("/var/lib/redis", str(folder))
            (folder / "sentinel.conf").write_text(f"{text}protected-mode no\n")
            machine.start(name, [SERVER, str(folder / "redis.conf")], {})
            machine.start(f"{name}-sentinel", [SERVER, str(folder / "sentinel.conf"), "--sentinel"], {})
        (tmp_path / "haproxy.cfg").write_text(recipe("haproxy.cfg", addresses, ""))
        for name in ("api", "worker"):
            machines[name].start(f"{name}-haproxy", [str(HAPROXY), "-db", "-f", str(tmp_path / "haproxy.cfg")], {})
        until(lambda: found.primary() == STORES[0] and found.watched())
        yield found, machines


@pytest.fixture
def pool(
    tmp_path: Path, stores: tuple[Stores, dict[str, Machine]], tokenizer: ChatTokenizer
) -> Iterator[tuple[RolloutClient, CallbackApp, str]]:
    machines = stores[1]
    key, entry = make_key("failovers", [KeyScope.ADMIN])
    secrets = tmp_path / "secrets.keys"
    secrets.write_text(subprocess.run([COMMAND, "make-secrets-key"], capture_output=True, text=True, check=True).stdout)
    secrets.chmod(0o400)
    common = {
        "ROLLOUTPOOL_REDIS_URL": "redis://pool:PASSWORD@127.0.0.1:6380/0",
        "ROLLOUTPOOL_SECRETS_FILE": str(secrets),
        "ROLLOUTPOOL_ALLOWED_TARGETS": f"{HERE}/32",
        "HF_HUB_OFFLINE": "1",
    }
    address = machines["api"].address
    served = {"ROLLOUTPOOL_API_HOST": address, "ROLLOUT_SERVER_PORT": "9000", "ROLLOUTPOOL_API_KEYS": entry.entry()}
    machines["api"].start("api", [sys.executable, "-m", "rolloutpool_api"], {**common, **served})
    command = [sys.executable, "-m", "rolloutpool_worker", "--processes", "1"]
    slots = {"ROLLOUTPOOL_WORKER_SLOTS": "32", "ROLLOUTPOOL_TOKENIZERS": TINY}
    machines["worker"].start("worker", command, {**common, **slots})
    app = callback_app(ScriptedPolicy(tokenizer, latency=0.5), tokenizer=tokenizer)
    with (
        RolloutClient(f"http://{address}:9000", key, timeout=120) as client,
        serve_callback(app, [0], HERE) as trainer,
    ):
        until(lambda: alive(client) == 1)
        yield client, app, trainer.url


def submit_until(stop: threading.Event, client: RolloutClient, trainer: str, accepted: Accepted) -> None:
    prompts = [{"messages": [{"role": "user", "content": text}]} for text in calculator_prompts(1, seed=3)]
    last = time.monotonic()
    while not stop.is_set():
        batch = client.submit(prompts, defaults={"tokenizer_name": TINY, "max_turns": 3}, trainer=trainer)
        now = time.monotonic()
        accepted.batches[batch.batch_id] = now
        accepted.gap, last = max(accepted.gap, now - last), now
        stop.wait(GAP_SECONDS)


@pytest.mark.parametrize("fault", ["killed", "lost", "cut off"])
def test_a_fail_over_loses_at_most_what_the_replicas_had_not_heard(
    stores: tuple[Stores, dict[str, Machine]],
    pool: tuple[RolloutClient, CallbackApp, str],
    fault: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    redis_machines, (client, app, trainer) = stores[0], pool
    accepted, stop = Accepted(), threading.Event()
    submitting = threading.Thread(target=submit_until, args=(stop, client, trainer, accepted))
    submitting.start()
    time.sleep(BEFORE_SECONDS)
    old = redis_machines.primary()
    assert old is not None
    machine, others = redis_machines.machines[old], [name for name in STORES if name != old]
    at = time.monotonic()
    match fault:
        case "killed":
            machine.kill(old)
        case "lost":
            machine.cut()
        case _:
            addresses = [redis_machines.machines[name].address for name in others]
            machine.ignore(*addresses)
            for name in others:
                redis_machines.machines[name].ignore(machine.address)
    until(lambda: redis_machines.primary() in others)
    moved = time.monotonic() - at
    machine.heal()
    for name in others:
        redis_machines.machines[name].heal()
    machine.join()
    time.sleep(AFTER_SECONDS)
    stop.set()
    submitting.join(120)
    assert not submitting.is_alive()
    lost, again = [], 0
    for batch, when in accepted.batches.items():
        try:
            results = list(client.batch(batch).results())
        except NotFound:
            lost.append(when - at)
            continue
        assert [one.status for one in results] == [RolloutStatus.COMPLETED], results
        session = app.get_session(results[0].rollout_id, results[0].uid)
        assert [one.response_ids for one in results[0].samples] == [one.response_ids for one in session.samples]
        again += results[0].attempt > 1
    assert app.sampling_log.repeated() == {}
    # No process of the pool ended, so nobody may have been declared dead.
    assert redis_machines.workers_lost() == 0
    # Replicas are heard of once a second, so the primary that was cut off accepts for a second more at most.
    assert all(-1 < when < LAG_SECONDS + 2 for when in lost), lost
    if fault != "cut off":
        assert len(lost) <= 1, lost
    with capsys.disabled():
        print(
            f"\nprimary {fault}: another after {moved:.1f} s, longest wait of a submit {accepted.gap:.1f} s; of "
            f"{len(accepted.batches)} accepted batches {len(lost)} lost, {again} ran as attempt 2"
        )
