"""A Redis in memory that redis-py connects to: fakeredis behind RESP, so that the store runs as it is.

It is more than fakeredis' own client: each process has its connections, which end with it; a command travels for some
time, so that those of several processes cross; and a process that dies leaves commands on their way, some of which
arrive. What fakeredis lacks and the scripts need, `INFO`, is added.

This module alone uses what fakeredis and lupa do not document. It overrides `eval` and `_lua_redis_call`: fakeredis
compiles the script and collects all garbage at each call, which made 2.3 ms of a claim.
"""

import asyncio
import hashlib
import random
import time
from collections.abc import Callable
from typing import Any

import hiredis
from fakeredis import FakeServer
from fakeredis._command_args_parsing import Int
from fakeredis._commands import COMMANDS_WITH_SUB, command
from fakeredis._helpers import SimpleError
from fakeredis._msgs import FLAG_NO_SCRIPT, NO_MATCHING_SCRIPT_MSG, SCRIPT_ERROR_MSG
from fakeredis.commands_mixins.scripting_mixin import LUA_MODULE, _convert_redis_arg
from redis import Redis as BlockingRedis
from redis.asyncio import Redis
from tests.inproc.clock import PoolLoop, Process, current
from tests.support.fake_session import FakeSession

from rolloutpool_common.store.connection import sources_of

HOST = "redis.inproc"
URL = f"redis://{HOST}:6379/0?protocol=2"
LONGEST_MS, SLOW_MS = 2.0, 600.0
"""A command's way to Redis, and its answer's way back; in general, and now and then."""


_VITAL = [
    hashlib.sha1(source.encode()).hexdigest().encode() for name in ("finish", "grade") for source in sources_of(name)
]


class _Session(FakeSession):
    """One connection, as Redis sees it."""

    uptime_from = 0.0

    def _process_command(self, fields: list[bytes]) -> None:
        # Not by `command`, which adds a command to every fakeredis of the process.
        if fields[0].upper() == b"INFO":
            return self.put_response(self.info())
        super()._process_command(fields)

    def info(self) -> bytes:
        """What the product asks for of it."""
        uptime = int(time.time() - _Session.uptime_from)
        return (
            f"# Server\r\nrun_id:{'1' * 40}\r\nuptime_in_seconds:{uptime}\r\n# Memory\r\nused_memory:1000000\r\n"
            "maxmemory:0\r\nmaxmemory_policy:noeviction\r\n# Persistence\r\naof_enabled:1\r\n"
        ).encode()

    def eval(self, script: bytes, numkeys: int, *keys_and_args: bytes) -> Any:
        """Runs a script by its text."""
        sha = hashlib.sha1(script).hexdigest().encode()
        self._server.script_cache[sha] = script
        return self.evalsha(sha, numkeys, *keys_and_args)

    @command(name="EVALSHA", fixed=(bytes, Int), repeat=(bytes,), flags=FLAG_NO_SCRIPT)
    def evalsha(self, sha1: bytes, numkeys: int, *keys_and_args: bytes) -> Any:
        """Runs a script that is known, compiled once."""
        server: Any = self._server
        script = server.script_cache.get(sha1)
        if script is None:
            raise SimpleError(NO_MATCHING_SCRIPT_MSG)
        lua = self._get_server_runtime(server)
        compiled = server.__dict__.setdefault("_compiled", {})
        if sha1 not in compiled:
            compiled[sha1] = lua.compile(script)
        server._lua_current_socket[0] = self
        self._script_resp = 2
        server._lua_set_keys_argv(lua.table_from(keys_and_args[:numkeys]), lua.table_from(keys_and_args[numkeys:]))
        try:
            return self._convert_lua_result(compiled[sha1](), nested=False)
        except LUA_MODULE.LuaError as error:
            raise SimpleError(SCRIPT_ERROR_MSG.format(sha1.decode(), error)) from None
        finally:
            self._script_resp = None

    def _lua_redis_call(self, lua_runtime: Any, expected_globals: set[Any], op: bytes, *args: Any) -> Any:
        del expected_globals
        name = op.decode().lower()
        if name in COMMANDS_WITH_SUB and args:
            name, args = f"{name} {args[0].decode().lower()}", args[1:]
        if name == "info":
            return self._convert_redis_result(lua_runtime, self.info())
        function, signature = self._name_to_func(name)
        result = self._run_command(function, signature, [_convert_redis_arg(arg) for arg in args], True)
        return self._convert_redis_result(lua_runtime, result)


class _Wire(asyncio.Transport):
    """One connection, as its client sees it."""

    def __init__(self, loop: PoolLoop, redis: "MemoryRedis", protocol: Any) -> None:
        super().__init__()
        self._loop, self._redis, self._protocol = loop, redis, protocol
        self._context = loop.context_of(current())
        self._reader = hiredis.Reader()
        self._there = self._back = 0.0
        self._closed = self._ended = self._held_up = False
        self._late = 0.0
        self._session = loop.outside.run(redis.session)
        self._session.answer = self._answer
        if (process := current()) is not None:
            process.closers.append(self._lose)

    def write(self, data: Any) -> None:
        """Sends commands on their way."""
        if not self._closed:
            self._there = self._due(self._there)
            self._loop.call_at(self._there, self._arrive, bytes(data), context=self._loop.outside)
            if self._redis.chance.random() < self._redis.breaks:
                self._break()
            if (process := current()) is not None:
                self._redis.on_sent(process, any(sha in data for sha in _VITAL))

    def close(self) -> None:
        """Ends the connection; what is on its way arrives."""
        if not self._closed:
            self._closed = True
            self._loop.call_soon(self._protocol.connection_lost, None)
            self._there = self._due(self._there)
            self._loop.call_at(self._there, self._end, context=self._loop.outside)

    abort = close

    def is_closing(self) -> bool:
        """Whether it was closed."""
        return self._closed

    def set_protocol(self, protocol: Any) -> None:
        """Answers go to another protocol from now on."""
        self._protocol = protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """It has no socket."""
        del name
        return default

    def _break(self) -> None:
        """The connection is cut: what was sent last arrives or not, and nobody hears the answer."""
        self._lose()
        self._loop.call_soon(self._protocol.connection_lost, ConnectionResetError("cut"), context=self._context)

    def _due(self, before: float) -> float:
        # In order, and never two at the same time: the loop's heap would shuffle them.
        chance = self._redis.chance
        way_ms = chance.uniform(0.05, SLOW_MS if chance.random() < self._redis.slow else LONGEST_MS)
        return max(self._loop.time() + way_ms / 1000, before + 1e-6)

    def _arrive(self, data: bytes) -> None:
        if self._ended:
            return
        if self._held_up and self._loop.time() < self._late:
            self._late += 1e-6
            self._loop.call_at(self._late, self._arrive, data, context=self._loop.outside)
            return
        self._reader.feed(data)
        while (fields := self._reader.gets()) is not False:
            self._redis.commands += 1
            self._redis.run(self._session, fields)

    def _answer(self, data: bytes) -> None:
        if not self._closed:
            self._back = self._due(self._back)
            self._loop.call_at(self._back, self._receive, data, context=self._context)

    def _receive(self, data: bytes) -> None:
        if not self._closed:
            self._protocol.data_received(data)

    def _lose(self) -> None:
        """Its process is dead. What it sent last is lost, arrives, or arrives when others have taken over."""
        if self._closed:
            return
        self._closed = True
        chance, outside = self._redis.chance, self._loop.outside
        match chance.randrange(3):
            case 0:
                return self._end()
            case 1:
                self._held_up, self._late = True, self._loop.time() + chance.uniform(1, 20)
        self._loop.call_at(max(self._there, self._late + 0.001) + 1e-6, self._end, context=outside)

    def _end(self) -> None:
        if not self._ended:
            self._ended = True
            self._session.close()


class MemoryRedis:
    """The server."""

    def __init__(self, loop: PoolLoop, chance: random.Random) -> None:
        """Listens at `URL` on this loop."""
        self.chance = chance
        self.commands = 0
        """How many have arrived."""
        self.slow = 0.0
        """How often a command, or its answer, is on its way for long."""
        self.breaks = 0.0
        """How often a connection is cut when a command was sent."""
        self.door: Callable[[list[bytes], Callable[[], None]], None] = lambda _, execute: execute()
        """Told of each command, and carries it out."""
        self.on_sent: Callable[[Process, bool], None] = lambda *_: None
        """Told of each command that a process has sent, and whether it is one that ends a rollout, or its talk."""
        self._server = FakeServer(version=(7, 4))
        loop.hosts[HOST] = lambda protocol: _Wire(loop, self, protocol)
        _Session.uptime_from = time.time() - 3600

    def run(self, session: _Session, fields: list[bytes]) -> None:
        """Carries out a command that has arrived."""
        self.door(fields, lambda: session._process_command(fields))

    def session(self) -> _Session:
        """A connection's other end."""
        return _Session(self._server, 0, client_class=Redis)

    def look(self) -> "Keys":
        """What is in it, at once and unseen by the pool."""
        return Keys(self.session())


class Keys:
    """A blocking client of it, with the commands of redis-py that the judges use; texts for bytes."""

    def __init__(self, session: _Session) -> None:
        self._session = session
        self._answers: list[bytes] = []
        session.answer = self._answers.append

    def ask(self, *fields: str | int) -> Any:
        """Runs one command."""
        self._session._process_command([str(field).encode() for field in fields])
        reader = hiredis.Reader(encoding="utf-8", errors="surrogateescape")
        reader.feed(self._answers.pop())
        return reader.gets()

    def hgetall(self, key: str) -> dict[str, str]:
        answer = self.ask("HGETALL", key)
        return dict(zip(answer[::2], answer[1::2], strict=True))

    def smembers(self, key: str) -> set[str]:
        return set(self.ask("SMEMBERS", key))

    def sismember(self, key: str, member: str) -> bool:
        return bool(self.ask("SISMEMBER", key, member))

    def zscore(self, key: str, member: str) -> float | None:
        found = self.ask("ZSCORE", key, member)
        return None if found is None else float(found)

    def lrange(self, key: str, start: int, end: int) -> list[str]:
        found: list[str] = self.ask("LRANGE", key, start, end)
        return found

    def hget(self, key: str, field: str | int) -> str | None:
        found: str | None = self.ask("HGET", key, field)
        return found

    def get(self, key: str) -> str | None:
        found: str | None = self.ask("GET", key)
        return found

    def time(self) -> tuple[int, int]:
        found = self.ask("TIME")
        return int(found[0]), int(found[1])

    def names(self) -> list[str]:
        """All keys."""
        return sorted(self.ask("KEYS", "*"))

    def ttl(self, key: str) -> int:
        return int(self.ask("TTL", key))


class _RealKeys(Keys):
    """The same of a real Redis."""

    def __init__(self, client: BlockingRedis) -> None:
        self._connection: Any = client.connection_pool.get_connection()

    def ask(self, *fields: str | int) -> Any:
        """Runs one command."""
        self._connection.send_command(*fields)
        return self._connection.read_response()


def served(url: str) -> tuple[str, Keys]:
    """Empties a real Redis; returns where it is, and what looks into it."""
    client = BlockingRedis.from_url(url, protocol=2, decode_responses=True, encoding_errors="surrogateescape")
    client.flushall()
    return f"{url}?protocol=2", _RealKeys(client)
