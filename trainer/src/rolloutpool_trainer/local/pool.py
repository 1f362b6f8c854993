"""The local pool, a whole pool on this machine: Redis, API, workers, Flower and a door as child processes.

    with LocalPool(workers=2) as pool:
        batch = pool.client().submit(...)

These are the same processes that run in production, started by `python -m`; none of their code is imported here. They
start in this order: Redis, then API and workers together, then Flower, for which `start` does not wait. They end when
the block ends, in the opposite order. Accepted work is kept in the `state` directory, and goes on when a pool is
started on it again; without one it is lost.
"""

import asyncio
import importlib.util
import os
import secrets
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import httpx

from rolloutpool_common.process.child import Child, ChildSpec, Role
from rolloutpool_common.process.supervisor import Supervisor
from rolloutpool_common.security.api_keys import KeyScope, make_key
from rolloutpool_common.security.targets import is_loopback
from rolloutpool_trainer.client.aio import AsyncRolloutClient
from rolloutpool_trainer.client.sync import RolloutClient
from rolloutpool_trainer.client.transport import connection_settings
from rolloutpool_trainer.errors import ChildFailed, KeysMissing, LocalPoolError, MissingExtra, PoolUnavailable
from rolloutpool_trainer.local.ports import check_port, hold_port
from rolloutpool_trainer.local.redis_server import start_redis
from rolloutpool_trainer.local.state import State, new_secrets_key

if TYPE_CHECKING:
    # It needs Redis' client, which only the extra `pool` installs.
    from rolloutpool_common.process.obituaries import Obituaries

READY_SECONDS = 120.0
"""How long a process may take to be ready without getting on."""


class LocalPool:
    """A pool whose processes live as long as this object."""

    def __init__(
        self,
        workers: int = 2,
        port: int = 0,
        *,
        host: str = "127.0.0.1",
        flower: bool = True,
        flower_port: int = 0,
        door: bool = False,
        door_port: int = 0,
        runner: str = "off",
        state: str | Path | None = None,
        redis_url: str | None = None,
        tokenizers: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        ready_seconds: float = READY_SECONDS,
        report: Callable[[str], None] | None = None,
    ) -> None:
        """Describes the pool; `start`, or entering the context, starts it.

        Args:
            workers: How many worker processes; one per core is right.
            port: Of the API; 0 takes a free one.
            host: Address on which API and Flower listen.
            flower: Whether to start Flower.
            flower_port: Of Flower; 0 takes a free one.
            door: Whether to start a door, which programs call as their model (docs/agents.md).
            door_port: Of the door; 0 takes a free one.
            runner: How programs are started (ROLLOUTPOOL_RUNNER_PROCESS), `off` for not at all; the door comes with it.
            state: Directory that keeps accepted work over restarts; None makes one that is removed in the end.
            redis_url: A Redis to use; None starts one.
            tokenizers: Names that each worker loads before it is ready; if empty, ROLLOUTPOOL_TOKENIZERS.
            env: Settings for all processes, e.g. `{"CALCULATOR_DELAY_MS": "10-100"}`.
            ready_seconds: How long a process may start without getting on. While it uses the CPU it gets on, so that a
                start on a busy machine, or with large tokenizers, may take longer.
            report: Called with a line for people when a process has crashed; logged as a warning where None.

        Raises:
            MissingExtra: The extra `pool` is not installed.
        """
        _check_installed(flower=flower)
        self._workers = workers
        self._host = host
        self._port = port
        self._flower = flower
        self._flower_port = flower_port
        self._door, self._runner = door or runner != "off", runner
        self._door_port = door_port
        self._state_path = None if state is None else Path(state)
        self._given_redis_url = redis_url
        self._redis_url = redis_url
        self._env = dict(env or {})
        self._ready_seconds = ready_seconds
        self._api_key: str | None = None
        if tokenizers:
            self._env["ROLLOUTPOOL_TOKENIZERS"] = ",".join(tokenizers)
        self._supervisor = Supervisor(report, error=ChildFailed)
        self._obituaries: Obituaries | None = None
        self._state: State | None = None
        self._started_workers: list[Child] = []
        self._flower_child: Child | None = None
        self._held_ports = ExitStack()

    @property
    def url(self) -> str:
        """Base URL of the API, under an address that this machine can reach."""
        return f"http://{_reachable(self._host)}:{self._port}"

    @property
    def flower_url(self) -> str | None:
        """Base URL of Flower; None without Flower."""
        return f"http://{_reachable(self._host)}:{self._flower_port}" if self._flower else None

    @property
    def door_url(self) -> str | None:
        """Base URL of the door; None without one."""
        return f"http://{_reachable(self._host)}:{self._door_port}" if self._door else None

    @property
    def flower_auth(self) -> str:
        """Flower's `user:password`."""
        state = self._running()
        return state.secret(state.flower_auth, lambda: f"rolloutpool:{secrets.token_hex(16)}")

    @property
    def redis_url(self) -> str:
        """URL of the pool's Redis; holds its password."""
        if self._redis_url is None:
            raise LocalPoolError("the pool has not been started")
        return self._redis_url

    @property
    def state(self) -> State:
        """The pool's state directory."""
        return self._running()

    @property
    def secrets_file(self) -> Path:
        """File with the keys for callers' secrets, which workers that are added by hand need too."""
        if given := self._setting("ROLLOUTPOOL_SECRETS_FILE"):
            return Path(given)
        state = self._running()
        state.secret(state.secrets_file, new_secrets_key)
        return state.secrets_file

    @property
    def workers(self) -> list[Child]:
        """The worker processes in the order in which they were started, stopped ones included."""
        return list(self._started_workers)

    def client(self, *, timeout: float = 60.0) -> RolloutClient:
        """Makes a client of this pool. If the pool has API keys, the client has one that may do everything."""
        return RolloutClient(self.url, self._api_key, timeout=timeout)

    def async_client(self, *, timeout: float = 60.0) -> AsyncRolloutClient:
        """Makes a client for asyncio, with the same key as that of `client`. It belongs to one event loop."""
        return AsyncRolloutClient(self.url, self._api_key, timeout=timeout)

    def start(self) -> Self:
        """Starts all processes; returns when the API answers and all workers have announced themselves.

        Raises:
            KeysMissing: It would listen beyond this machine, and has no API keys.
            PortTaken: Something else listens on one of the ports.
            StateInUse: Another pool runs on this state.
            RedisMissing: There is no redis-server.
            ChildFailed: A process ended while it started; the message ends with its log.
        """
        if self._state is not None:
            raise LocalPoolError("the pool is running already")
        self._check_keys()
        self._state = State(self._state_path)
        try:
            self._take_ports()
            if self._given_redis_url is None:
                self._redis_url = start_redis(self._state, self._supervisor, self._held_ports)
            self._start_obituaries()
            api = self._start("api", Role.API, "rolloutpool_api", self._api_env())
            started = [self._start_worker() for _ in range(self._workers)]
            doors = self._start_doors()
            self._supervisor.wait_ready([api], lambda: _answers(self.url, "/livez"), self._ready_seconds)
            self._await_workers(started)
            if doors:
                self._supervisor.wait_ready(doors, self._door_answers, self._ready_seconds)
            if self._flower:
                self._start_flower()
        # Ctrl-C too: the caller gets no pool that it could stop, so the processes have to end here.
        except BaseException:
            self.stop()
            raise
        return self

    def add_worker(self) -> Child:
        """Starts one more worker process; returns when it takes work."""
        self._running()
        worker = self._start_worker()
        self._await_workers([worker])
        return worker

    def kill_worker(self, index: int) -> None:
        """Kills a worker, as if its machine had crashed (kill -9). It is started again, as after any crash."""
        self._started_workers[index].send(signal.SIGKILL)

    def stop_worker(self, index: int) -> None:
        """Drains a worker and ends it; other workers get what it cannot finish in time."""
        self._supervisor.stop_child(self._started_workers[index])

    def wait_flower(self) -> bool:
        """Waits until Flower answers, while it gets on; nothing else waits for it, and the pool works without it.

        Returns:
            Whether it answers, or this pool has none.
        """
        if self._flower_child is None:
            return True
        try:
            self._supervisor.wait_ready([self._flower_child], self._flower_answers, self._ready_seconds)
        except ChildFailed:
            return False
        return True

    def join(self) -> None:
        """Waits until the pool has been stopped, by another thread or by a signal handler that raises."""
        self._supervisor.wait()

    def stop(self) -> None:
        """Stops all processes in order: workers drain first, Redis ends last."""
        self._supervisor.stop()
        if self._obituaries is not None:
            self._obituaries.stop()
            self._obituaries = None
        if self._state is not None:
            self._state.release()
            self._state = None
        # The server of the next start may have another port.
        self._redis_url = self._given_redis_url
        self._started_workers.clear()
        self._held_ports.close()

    def kill(self) -> None:
        """Kills all processes at once. A signal handler may call it while `stop` waits for a drain."""
        self._supervisor.kill()

    def _setting(self, name: str) -> str | None:
        """The value that the pool's processes will see."""
        return self._env.get(name) or os.environ.get(name) or None

    def _check_keys(self) -> None:
        # With keys, `client` needs one too, and the entries that are given hold digests only. So the pool adds its own.
        given = self._setting("ROLLOUTPOOL_API_KEYS")
        if given or self._setting("ROLLOUTPOOL_API_KEYS_FILE"):
            self._api_key, own = make_key("local-pool", [KeyScope.ADMIN])
            self._env["ROLLOUTPOOL_API_KEYS"] = f"{given or ''} {own.entry()}"
        elif not is_loopback(self._host):
            raise KeysMissing(
                f"without keys, everyone who reaches {self._host} could use this pool. {KeysMissing.__doc__}"
            )

    def _running(self) -> State:
        if self._state is None:
            raise LocalPoolError("the pool is not running: call start, or use it as a context manager")
        return self._state

    def _take_ports(self) -> None:
        if self._port:
            check_port(self._port, self._host, what="the API", option="--port or ROLLOUT_SERVER_PORT")
        else:
            self._port = hold_port(self._host, self._held_ports)
        if self._door and self._door_port:
            check_port(self._door_port, self._host, what="the door", option="--door-port or ROLLOUTPOOL_DOOR_PORT")
        elif self._door:
            self._door_port = hold_port(self._host, self._held_ports)
        if not self._flower:
            return
        if self._flower_port:
            option = "--flower-port or ROLLOUTPOOL_FLOWER_PORT"
            check_port(self._flower_port, self._host, what="Flower", option=option)
        else:
            self._flower_port = hold_port(self._host, self._held_ports)

    def _start(self, name: str, role: Role, module: str, env: Mapping[str, str], *, ready: bool = False) -> Child:
        spec = ChildSpec(
            name=name,
            role=role,
            command=[sys.executable, "-m", module],
            env={
                **self._env,
                "ROLLOUTPOOL_REDIS_URL": self.redis_url,
                "ROLLOUTPOOL_SECRETS_FILE": str(self.secrets_file),
                **env,
            },
            log=self._running().logs / f"{name}.log",
            # Flower only watches, so it must not slow down the processes that it watches.
            niceness=10 if role is Role.FLOWER else 0,
            obituaries=self._obituaries if role is Role.WORKER else None,
        )
        return self._supervisor.start(spec, ready=ready)

    def _start_obituaries(self) -> None:
        from rolloutpool_common.process.obituaries import Obituaries
        from rolloutpool_common.process.settings import with_authority

        self._obituaries = Obituaries(with_authority(self.redis_url, self._setting("ROLLOUTPOOL_REDIS_CA")))
        self._obituaries.start()

    def _start_worker(self) -> Child:
        worker = self._start(f"worker-{len(self._started_workers) + 1}", Role.WORKER, "rolloutpool_worker", {})
        self._started_workers.append(worker)
        return worker

    def _start_doors(self) -> list[Child]:
        if self.door_url is None:
            return []
        env = {"ROLLOUTPOOL_DOOR_HOST": self._host, "ROLLOUTPOOL_DOOR_PORT": str(self._door_port)}
        doors = [self._start("door", Role.API, "rolloutpool_api.capabilities.harness", env)]
        env = {"ROLLOUTPOOL_DOOR_URL": self.door_url, "ROLLOUTPOOL_RUNNER_PROCESS": self._runner}
        runner = None if self._runner == "off" else "rolloutpool_worker.capabilities.harness"
        return doors if runner is None else [*doors, self._start("runner", Role.API, runner, env)]

    def _start_flower(self) -> None:
        env = {
            "ROLLOUTPOOL_FLOWER_HOST": self._host,
            "ROLLOUTPOOL_FLOWER_PORT": str(self._flower_port),
            "ROLLOUTPOOL_FLOWER_AUTH": self.flower_auth,
        }
        self._flower_child = self._start("flower", Role.FLOWER, "rolloutpool_worker.queue.flower", env, ready=True)

    def _api_env(self) -> dict[str, str]:
        door = {} if self.door_url is None else {"ROLLOUTPOOL_DOOR_URL": self.door_url}
        return {"ROLLOUTPOOL_API_HOST": self._host, "ROLLOUT_SERVER_PORT": str(self._port), **door}

    def _await_workers(self, workers: Sequence[Child]) -> None:
        """Waits until each of them has announced itself, which a worker does when it takes work."""
        # No time for retries: the supervisor asks every 50 ms anyway, and in between it sees whether a child has ended.
        with self.client(timeout=0) as client:

            def announced() -> bool:
                try:
                    # With the host, because a given Redis may have workers of other machines with the same pids.
                    alive = {(worker.host, worker.pid) for worker in client.workers() if worker.alive}
                except PoolUnavailable:
                    return False
                return all((socket.gethostname(), worker.pid) in alive for worker in workers)

            self._supervisor.wait_ready(workers, announced, self._ready_seconds)

    def _door_answers(self) -> bool:
        return _answers(self.door_url or "", "/livez")

    def _flower_answers(self) -> bool:
        return _answers(self.flower_url or "", "/healthcheck")

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.start)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.stop)


def _check_installed(*, flower: bool) -> None:
    needed = ["rolloutpool_api", "rolloutpool_worker", *(["flower"] if flower else [])]
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingExtra.needed("a pool on this machine", ", ".join(missing))


def _reachable(host: str) -> str:
    """The address under which this machine reaches a server that listens on `host`."""
    # These two mean all addresses of the machine, and are none that one can connect to.
    if host in ("0.0.0.0", "::"):
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host


def _answers(base_url: str, path: str) -> bool:
    try:
        with httpx.Client(**connection_settings(base_url, None)) as http:
            return http.get(path, timeout=2.0).is_success
    except httpx.TransportError:
        return False
