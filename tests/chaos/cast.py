"""The processes of a campaign, and the ways between them.

client ── API x2 ──┐            ┌── trainer x2, nine ports each
                   Redis    workers
each API process and each worker reaches Redis by a link of its own, and the workers reach each port by one.
"""

import asyncio
import sys
from pathlib import Path

import orjson
import redis.asyncio
from cryptography.fernet import Fernet
from tests.chaos import sockets
from tests.chaos.link import Link
from tests.chaos.manners import Manner
from tests.chaos.process import Process
from tests.chaos.record import Record, entries
from tests.support.waiting import until

from rolloutpool_common.process.failpoints import VARIABLE
from rolloutpool_trainer.local.redis_server import find_server

__all__ = ["Cast"]

ROOT = Path(__file__).parents[2]
APIS, TRAINERS = 2, 2
START_SECONDS = 120.0

Failpoints = dict[str, float]


class Cast:
    """Everything that can be hurt, by kind."""

    def __init__(self, folder: Path, record: Record, *, workers: int, latency: float, failpoints: Failpoints) -> None:
        """Nothing runs yet."""
        self.folder = folder
        ports = sockets.lasting_ports()
        self.redis_port = next(ports)
        self.api_ports = [next(ports) for _ in range(APIS)]
        self.trainer_logs = [folder / f"trainer-{n}.jsonl" for n in range(TRAINERS)]
        self._record = record
        self._latency = latency
        self._ports = [{manner: next(ports) for manner in Manner} for _ in range(TRAINERS)]
        self.store_links = [Link(name, self.redis_port) for name in self._names("api", APIS)]
        self.worker_links = [Link(name, self.redis_port) for name in self._names("worker", workers)]
        self.trainer_links = [
            {manner: Link(f"trainer-{n}/{manner}", port, self._connected) for manner, port in ports.items()}
            for n, ports in enumerate(self._ports)
        ]
        self._secrets = folder / "secrets"
        self._secrets.write_bytes(Fernet.generate_key())
        self._secrets.chmod(0o600)
        self._armed = ",".join(f"{name}:{chance:.6f}" for name, chance in failpoints.items())
        self._tools = folder / "tools.json"
        (folder / "redis").mkdir(exist_ok=True)
        self.redis = self._process("redis", [find_server(), *self._redis_options()], {})
        self.apis: list[Process] = []
        self.workers: list[Process] = []
        self.trainers: list[Process] = []
        self._callers: dict[int, str | None] = {}

    @property
    def links(self) -> list[Link]:
        """All ways."""
        return [
            *self.store_links,
            *self.worker_links,
            *(link for ports in self.trainer_links for link in ports.values()),
        ]

    @property
    def api_urls(self) -> list[str]:
        """Where the API listens."""
        return [f"http://127.0.0.1:{port}" for port in self.api_ports]

    def url(self, manner: Manner, n: int) -> str:
        """A port of this manner, as the pool gets it."""
        return f"http://127.0.0.1:{self.trainer_links[n % TRAINERS][manner].port}"

    def client(self) -> redis.asyncio.Redis:
        """A connection to Redis by no link."""
        return redis.asyncio.Redis(port=self.redis_port)

    async def start_pool(self) -> None:
        """Redis, API, workers; they may not be ready when this returns."""
        for link in self.links:
            await link.start()
        self.redis.start()
        await self.redis_answers()
        for link, port in zip(self.store_links, self.api_ports, strict=True):
            env = {**self._env(link), "ROLLOUT_SERVER_PORT": str(port)}
            self.apis.append(self._process(link.name, [sys.executable, "-m", "rolloutpool_api"], env))
        for link in self.worker_links:
            env = {
                **self._env(link),
                "ROLLOUTPOOL_TOKENIZERS": "rolloutpool/tiny",
                "ROLLOUTPOOL_WORKER_SLOTS": "128",
                "ROLLOUTPOOL_DRAIN_SECONDS": "10",
                "ROLLOUTPOOL_INFRA_RETRIES": "5",
                "HTTP_CLIENT_TIMEOUT": "15",
            }
            self.workers.append(self._process(link.name, [sys.executable, "-m", "rolloutpool_worker"], env))
        for process in (*self.apis, *self.workers):
            process.start()

    async def start_trainers(self, tools: list[dict[str, object]]) -> None:
        """The trainers, which need to know the pool's tools; returns when they listen."""
        self._tools.write_bytes(orjson.dumps(tools))
        for log, ports in zip(self.trainer_logs, self._ports, strict=True):
            listens = [f"{port}={manner}" for manner, port in ports.items()]
            command = [
                sys.executable,
                "-m",
                "tests.chaos.trainer",
                *map(str, (log, self._tools, self._latency)),
                *listens,
            ]
            self.trainers.append(self._process(log.stem, command, {}))
            self.trainers[-1].start()

        async def listen() -> bool:
            return all(log.exists() and b'"event":"start"' in log.read_bytes() for log in self.trainer_logs)

        await until(listen, START_SECONDS)

    async def busy(self) -> Process | None:
        """A worker that waits for a further turn of a rollout, whose turns before that are in the journal."""
        for log in self.trainer_logs:
            waiting: dict[str, int] = {}
            for entry in entries(log):
                if entry["event"] == "ask" and entry["turn"] > 1:
                    waiting[entry["uid"]] = entry["port"]
                elif entry["event"] == "answer":
                    waiting.pop(entry["uid"], None)
            callers = {self._callers.get(port) for port in waiting.values()}
            if found := next((worker for worker in self.workers if worker.name in callers), None):
                return found
        return None

    async def redis_answers(self) -> None:
        """Returns when Redis has loaded its data."""
        async with asyncio.timeout(START_SECONDS), self.client() as client:
            while True:
                try:
                    await client.ping()
                    return
                except (redis.exceptions.ConnectionError, OSError):
                    await asyncio.sleep(0.05)

    async def stop(self) -> None:
        """Ends all processes, then all ways."""
        await asyncio.gather(*(process.stop() for process in (*self.workers, *self.apis, *self.trainers)))
        await self.redis.stop()
        for link in self.links:
            await link.close()

    def _names(self, kind: str, count: int) -> list[str]:
        return [f"{kind}-{n}" for n in range(count)]

    def _process(self, name: str, command: list[str], env: dict[str, str]) -> Process:
        return Process(name, command, env, self.folder, self._ended)

    def _ended(self, process: Process, code: int, failpoint: str | None) -> None:
        self._record.write("ended", name=process.name, code=code, failpoint=failpoint)

    def _connected(self, theirs: int, ours: int) -> None:
        pids = {worker.pid: worker.name for worker in self.workers if worker.pid is not None}
        owner = sockets.owner(theirs, pids)
        self._callers[ours] = pids[owner] if owner is not None else None
        self._record.write("connected", port=ours, worker=self._callers[ours])

    def _env(self, link: Link) -> dict[str, str]:
        return {
            "ROLLOUTPOOL_REDIS_URL": f"redis://127.0.0.1:{link.port}/0",
            "ROLLOUTPOOL_SECRETS_FILE": str(self._secrets),
            VARIABLE: self._armed,
        }

    def _redis_options(self) -> list[str]:
        options = {
            "--bind": "127.0.0.1",
            "--port": str(self.redis_port),
            "--dir": str(self.folder / "redis"),
            "--appendonly": "yes",
            "--appendfsync": "always",
            "--save": "",
            "--maxmemory-policy": "noeviction",
        }
        return [part for option in options.items() for part in option]
