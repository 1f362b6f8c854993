"""The processes of a campaign, and the ways between them.

client ── API x2 ──┐            ┌── trainer x2, a port for each manner
                   Redis    hosts
                                └── environments
each API process and each host reaches Redis by a link of its own, and the workers reach each port by one. A host is
`rolloutpool worker --processes N`: a parent with N workers. Further hosts come and go (`scale_out`, `scale_in`). They
have neither graders nor environments, so only a part of the work may go to them. One of them is of an earlier release,
where the clone has its commit.

With machines (`network.py`), Redis, each API and each host of workers are on one of their own. The links, the trainers
and the environments stay on this one, so what goes over a link crosses the network twice.
"""

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import httpx
import orjson
import redis.asyncio
from cryptography.fernet import Fernet
from tests.chaos import sockets
from tests.chaos.census import Census, Member
from tests.chaos.clocks import Clock
from tests.chaos.environments import write_file
from tests.chaos.hosts import APIS, Host, host_names, lay_out_build, numbered, redis_options
from tests.chaos.link import LOOPBACK, Link
from tests.chaos.manners import Manner
from tests.chaos.process import Process
from tests.chaos.record import Record, entries
from tests.machines.network import HERE, Machine
from tests.support.other_builds import python_path
from tests.support.waiting import until_true

from rolloutpool_common.process.failpoints import VARIABLE
from rolloutpool_common.security.api_keys import KeyScope, make_key
from rolloutpool_trainer.local.redis_server import find_server

ROOT = Path(__file__).parents[2]
TRAINERS = 2
SCALE_IN_SECONDS = 45.0
"""A host that is scaled in drains first."""
START_SECONDS = 120.0
CLOSE_LOOKS = 30
"""Twice a second: a close may take ten."""

Failpoints = dict[str, float]


class Cast:
    """Everything that can be hurt, by kind."""

    def __init__(
        self,
        folder: Path,
        record: Record,
        *,
        hosts: Sequence[int],
        latency: float,
        failpoints: Failpoints,
        env: Mapping[str, str] | None = None,
        clocks: bool = False,
        machines: Mapping[str, Machine] | None = None,
    ) -> None:
        """Nothing runs yet. `hosts` says how many workers each has, `latency` how many seconds a turn takes on average.

        `failpoints` has the chance of each. With `clocks`, those of Redis and of the hosts can be made to jump. Redis,
        APIs and hosts run on `machines` by their names (`machine_names`), or here where there are none.
        """
        self.folder = folder
        self.machines = dict(machines or {})
        self.here = HERE if machines else LOOPBACK
        """The address of this machine, for all others."""
        self.redis_address = self.address("redis")
        self.key: str | None = None
        self._api_keys: dict[str, str] = {}
        if machines:
            # An API that others can reach does not start without keys.
            self.key, entry = make_key("campaign", [KeyScope.ADMIN])
            self._api_keys["ROLLOUTPOOL_API_KEYS"] = entry.entry()
        ports = sockets.lasting_ports()
        self.redis_port = next(ports)
        self.api_ports = [next(ports) for _ in range(APIS)]
        self.trainer_logs = [folder / f"trainer-{n}.jsonl" for n in range(TRAINERS)]
        self._record = record
        self._latency = latency
        self._ports = [{manner: next(ports) for manner in Manner} for _ in range(TRAINERS)]
        self.store_links = [self._link_to_redis(name) for name in numbered("api", APIS)]
        self.worker_links = [self._link_to_redis(name) for name in host_names(len(hosts))]
        self.trainer_links = [
            {
                manner: Link(f"trainer-{n}/{manner}", port, self._connected, listens=self.here)
                for manner, port in ports.items()
            }
            for n, ports in enumerate(self._ports)
        ]
        self._environment_port = next(ports)
        self.environment_link = Link("environments", self._environment_port, self._connected, listens=self.here)
        self._environments_file = folder / "environments.toml"
        self._secrets = folder / "secrets"
        self._secrets.write_bytes(Fernet.generate_key())
        self._secrets.chmod(0o600)
        self._armed = ",".join(f"{name}:{chance:.6f}" for name, chance in failpoints.items())
        self._tools = folder / "tools.json"
        (folder / "redis").mkdir(exist_ok=True)
        self.clocks = {name: Clock(folder / f"clock-{name}") for name in ("redis", "hosts")} if clocks else {}
        redis_env = self.clocks["redis"].env if clocks else {}
        self.redis = self._process(
            "redis",
            [find_server(), *redis_options(folder / "redis", self.redis_address, self.redis_port)],
            dict(redis_env),
        )
        self.apis: list[Process] = []
        self._children = hosts
        self._more_env = dict(env or {})
        self.hosts: list[Host] = []
        self._other_build = lay_out_build(folder / "build", record)
        self.gone: list[Process] = []
        """The processes of hosts that were scaled in."""
        self.census = Census(record, self.redis_address, self.redis_port, self._pids_of_hosts)
        self.trainers: list[Process] = []
        self.environments = self._process(
            "environments",
            [
                sys.executable,
                "-m",
                "tests.chaos.environments",
                *map(str, (self.environments_log, self._environment_port)),
            ],
            {},
            preferred=True,
        )
        self._callers: dict[int, int | None] = {}
        self._returns: set[asyncio.Task[None]] = set()

    @property
    def environments_log(self) -> Path:
        """What the sessions of environments do."""
        return self.folder / "environments.jsonl"

    @property
    def workers(self) -> int:
        """How many worker processes there should be."""
        return sum(self._children)

    @property
    def processes(self) -> list[Process]:
        """All that can be started again."""
        return [self.redis, *self.apis, *(host.root for host in self.hosts), *self.trainers, self.environments]

    @property
    def links(self) -> list[Link]:
        """All ways."""
        return [
            *self.store_links,
            *self.worker_links,
            *(link for ports in self.trainer_links for link in ports.values()),
            self.environment_link,
        ]

    @property
    def api_urls(self) -> list[str]:
        """Where the API listens."""
        return [f"http://{self.address(f'api-{n}')}:{port}" for n, port in enumerate(self.api_ports)]

    def url(self, manner: Manner, n: int) -> str:
        """A port of this manner, as the pool gets it."""
        return f"http://{self.here}:{self.trainer_links[n % TRAINERS][manner].port}"

    def client(self) -> redis.asyncio.Redis:
        """A connection to Redis by no link."""
        return redis.asyncio.Redis(host=self.redis_address, port=self.redis_port)

    @property
    def redis_url(self) -> str:
        """Redis by no link."""
        return f"redis://{self.redis_address}:{self.redis_port}/0"

    def address(self, name: str) -> str:
        """The address of what has this name."""
        return self.machines[name].address if name in self.machines else LOOPBACK

    async def start_pool(self) -> None:
        """Redis, API, workers; they may not be ready when this returns."""
        for link in self.links:
            await link.start()
        self.environments.start()
        write_file(self._environments_file, self.here, self.environment_link.port)
        self.redis.start()
        await self.redis_answers()
        for link, port in zip(self.store_links, self.api_ports, strict=True):
            served = {"ROLLOUTPOOL_API_HOST": self.address(link.name), "ROLLOUT_SERVER_PORT": str(port)}
            env = {**self._env(link), **served, **self._api_keys}
            self.apis.append(self._process(link.name, [sys.executable, "-m", "rolloutpool_api"], env))
        for link, children in zip(self.worker_links, self._children, strict=False):
            self.hosts.append(Host(self._worker_process(link, children), link))
        for process in (*self.apis, *(host.root for host in self.hosts)):
            process.start()
        self.census.start()

    def scale_out(self) -> str | None:
        """Starts a further host; returns its name, None where all of them run."""
        running = {host.name for host in self.hosts}
        link = next((link for link in self.worker_links if link.name not in running), None)
        if link is None:
            return None
        other = self._other_build if link is self.worker_links[-1] else None
        if other is not None and any(link.repeats is not None for link in self.links):
            # It takes whatever comes for the reply to its request: that was its fault, and it would count as ours.
            return None
        host = Host(self._worker_process(link, 1, whole=False, sources=other), link)
        self.hosts.append(host)
        host.root.start()
        return host.name

    @property
    def mixed(self) -> bool:
        """Whether a host of another build is there."""
        return self._other_build is not None and any(host.link is self.worker_links[-1] for host in self.hosts)

    async def scale_in(self) -> str | None:
        """Stops a further host in the ordinary way; returns its name when it has ended, None where there is none."""
        host = next((host for host in self.hosts if host.name.startswith("elastic")), None)
        if host is None:
            return None
        await host.root.stop(patience=SCALE_IN_SECONDS)
        self.gone.append(host.root)
        self.hosts.remove(host)
        return host.name

    def _worker_process(self, link: Link, children: int, *, whole: bool = True, sources: Path | None = None) -> Process:
        """Makes a host with so many workers, graders and environments where `whole`, maybe of other `sources`."""
        plugins = ["tests.chaos.gil", *(["tests.chaos.graders"] if whole else [])]
        return self._process(
            link.name,
            [
                *(str(Path(sys.executable).with_name("rolloutpool")), "worker", "--redis", self._url(link)),
                *("--processes", str(children)),
            ],
            {
                **(self.clocks["hosts"].env if self.clocks else {}),
                **self._env(link),
                "ROLLOUTPOOL_TOKENIZERS": "rolloutpool/tiny",
                "ROLLOUTPOOL_WORKER_SLOTS": "128",
                "ROLLOUTPOOL_DRAIN_SECONDS": "10",
                "ROLLOUTPOOL_INFRA_RETRIES": "5",
                "ROLLOUTPOOL_PLUGINS": ",".join(plugins),
                "ROLLOUTPOOL_GRADER_TIMEOUT": "5",
                **({"ROLLOUTPOOL_ENVIRONMENTS_FILE": str(self._environments_file)} if whole else {}),
                "ROLLOUTPOOL_TOOL_TIMEOUT": "15",
                "HTTP_CLIENT_TIMEOUT": "15",
                "PYTHONPATH": os.pathsep.join([*([python_path(sources)] if sources else []), str(ROOT)]),
            },
        )

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
            self.trainers.append(self._process(log.stem, command, {}, preferred=True))
            self.trainers[-1].start()
        await until_true(
            lambda: all(log.exists() and b'"event":"start"' in log.read_bytes() for log in self.trainer_logs),
            START_SECONDS,
        )

    async def busy(self) -> Member | None:
        """A worker that waits for a further turn of a rollout, whose turns before that are in the journal."""
        for log in self.trainer_logs:
            waiting: dict[str, int] = {}
            for entry in entries(log):
                if entry["event"] == "ask" and entry["turn"] > 1:
                    waiting[entry["uid"]] = entry["port"]
                elif entry["event"] == "answer":
                    waiting.pop(entry["uid"], None)
            callers = {self._callers.get(port) for port in waiting.values()}
            if found := next((member for member in self.census.members if member.pid in callers), None):
                return found
        return None

    def host(self, name: str) -> Host:
        """The host of this name."""
        return next(host for host in self.hosts if host.name == name)

    def cut_off(self, host: Host) -> None:
        """Takes a host off the network, and nobody is told."""
        if (machine := self.machines.get(host.name)) is not None:
            machine.cut()
        else:
            host.link.hold()

    def join(self, host: Host) -> None:
        """Puts it back."""
        if (machine := self.machines.get(host.name)) is not None:
            machine.join()
        host.link.let_go()

    async def redis_answers(self) -> None:
        """Returns when Redis has loaded its data."""
        async with asyncio.timeout(START_SECONDS), self.client() as client:
            while True:
                try:
                    await client.ping()
                    return
                except (redis.exceptions.ConnectionError, OSError):
                    await asyncio.sleep(0.05)

    async def note_sessions(self) -> None:
        """Notes the sessions of environments that are still open, once those of living workers had time to close."""
        living = set(self._pids_of_hosts())
        async with asyncio.timeout(START_SECONDS), httpx.AsyncClient() as client:
            for _ in range(CLOSE_LOOKS):
                try:
                    found = (await client.get(f"http://127.0.0.1:{self._environment_port}/sessions")).json()
                except httpx.HTTPError:
                    found = {}
                if all(self._callers.get(state["port"]) not in living for state in found.values()):
                    break
                await asyncio.sleep(0.5)
        self._record.write("sessions", open=list(found))

    async def note_totals(self) -> None:
        """Notes what can be read only at the end: the pool's own count of deaths, and who ended at which failpoint."""
        async with self.client() as client:
            lost, strays = await client.hmget("rp:totals", ["workers_lost", "strays"])
            self._record.write("totals", workers_lost=int(lost or 0), strays=int(strays or 0))
        # A host that comes again writes the same log.
        for process in {process.log: process for process in [*self.processes, *self.gone]}.values():
            for name in process.failpoints():
                self._record.write("failpoint", failpoint=name)

    async def stop(self) -> None:
        """Ends all processes, then all ways."""
        await asyncio.gather(*(process.stop() for process in self.processes if process is not self.redis))
        await self.census.stop()
        await self.redis.stop()
        for link in self.links:
            await link.close()

    def _link_to_redis(self, name: str) -> Link:
        return Link(name, self.redis_port, server=self.redis_address, listens=self.here)

    def _process(self, name: str, command: list[str], env: dict[str, str], *, preferred: bool = False) -> Process:
        placed = self.machines[name].command(command) if name in self.machines else command
        return Process(name, placed, env, self.folder, self._ended, preferred=preferred)

    def _ended(self, process: Process, code: int) -> None:
        self._record.write("ended", name=process.name, code=code)
        if process is self.redis and not process.ending:
            task = asyncio.create_task(self._note_return())
            self._returns.add(task)
            task.add_done_callback(self._returns.discard)

    async def _note_return(self) -> None:
        with suppress(TimeoutError):
            await self.redis_answers()
            self._record.write("answers", name=self.redis.name)

    def _pids_of_hosts(self) -> dict[int, str]:
        return {pid: host.name for host in self.hosts for pid in host.pids()}

    def _connected(self, theirs: int, ours: int) -> None:
        known = [member.pid for member in self.census.members]
        # A worker that is not listed, or not yet, is found among all processes, which takes longer.
        owner = sockets.owner(theirs, known) or sockets.owner(theirs, self._pids_of_hosts())
        self._callers[ours] = owner
        self._record.write("connected", port=ours, pid=owner)

    def _url(self, link: Link) -> str:
        return f"redis://{self.here}:{link.port}/0"

    def _env(self, link: Link) -> dict[str, str]:
        return {
            "ROLLOUTPOOL_REDIS_URL": self._url(link),
            "ROLLOUTPOOL_SECRETS_FILE": str(self._secrets),
            **({"ROLLOUTPOOL_ALLOWED_TARGETS": f"{self.here}/32"} if self.machines else {}),
            VARIABLE: self._armed,
            **self._more_env,
        }
