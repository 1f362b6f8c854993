"""How scripts run: calls that are made while others are under way travel together.

A hundred rollouts in flight make their calls at the same moments. One pipeline for all that wait costs a third of one
round trip each, in this process and in Redis, which also writes to disk once for all of them. Each call keeps its own
answer and its own error; a broken connection is an error of all that travelled on it.
"""

import asyncio
import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import NoScriptError, ResponseError

__all__ = ["Scripts"]

AT_ONCE = 128
PATIENCE = 0.25
"""Seconds after which those that wait go ahead on another connection: one that hangs must not hold up all."""


class _Call(NamedTuple):
    name: str
    args: tuple[Any, ...]
    answer: asyncio.Future[Any]


class Scripts:
    """The scripts of one Redis client; for one event loop."""

    def __init__(self, redis: Any, sources: Mapping[str, str]) -> None:
        self._redis = redis
        self._sources = sources
        self._hashes = {name: hashlib.sha1(source.encode()).hexdigest() for name, source in sources.items()}
        self._waiting: list[_Call] = []
        self._under_way: set[asyncio.Task[None]] = set()
        self._awaited: asyncio.Task[None] | None = None

    async def run(self, name: str, args: tuple[Any, ...]) -> Any:
        """The script's answer; raises what redis-py raises."""
        answer = asyncio.get_running_loop().create_future()
        self._waiting.append(_Call(name, args, answer))
        if self._awaited is None:
            self._begin()
        return await answer

    def _begin(self) -> None:
        task = asyncio.create_task(self._send_waiting())
        self._awaited = task
        self._under_way.add(task)
        overtake = asyncio.get_running_loop().call_later(PATIENCE, self._go_on, task)
        task.add_done_callback(lambda _: overtake.cancel())
        task.add_done_callback(self._under_way.discard)
        task.add_done_callback(self._go_on)

    def _go_on(self, task: asyncio.Task[None]) -> None:
        if self._awaited is task:
            self._awaited = None
            if self._waiting:
                self._begin()

    async def _send_waiting(self) -> None:
        calls = [call for call in self._waiting[:AT_ONCE] if not call.answer.done()]
        del self._waiting[:AT_ONCE]
        try:
            answers = await self._send(calls)
            unknown = [n for n, answer in enumerate(answers) if isinstance(answer, NoScriptError)]
            if unknown:
                # Redis forgets scripts when it restarts.
                for name in {calls[n].name for n in unknown}:
                    await self._redis.script_load(self._sources[name])
                again = await self._send([calls[n] for n in unknown])
                for n, answer in zip(unknown, again, strict=True):
                    answers[n] = answer
        except Exception as error:
            for call in calls:
                if not call.answer.done():
                    call.answer.set_exception(error)
            return
        except asyncio.CancelledError:
            for call in calls:
                call.answer.cancel()
            raise
        for call, answer in zip(calls, answers, strict=True):
            if call.answer.done():
                continue
            if isinstance(answer, Exception):
                call.answer.set_exception(answer)
            else:
                call.answer.set_result(answer)

    async def _send(self, calls: Iterable[_Call]) -> list[Any]:
        # Not redis-py's pipeline, whose bookkeeping around these calls was a fifth of what Redis costs a worker
        # (docs/decisions/0010).
        commands = [("EVALSHA", self._hashes[name], 0, *args) for name, args, _ in calls]
        pool = self._redis.connection_pool
        connection = await pool.get_connection()
        try:
            answers: list[Any] = await connection.retry.call_with_retry(
                lambda: _exchange(connection, commands), lambda _: connection.disconnect()
            )
            return answers
        finally:
            await pool.release(connection)


async def _exchange(connection: AbstractConnection, commands: list[tuple[Any, ...]]) -> list[Any]:
    await connection.send_packed_command(connection.pack_commands(commands))
    answers = []
    for _ in commands:
        try:
            answers.append(await connection.read_response())
        except ResponseError as error:
            answers.append(error)
    return answers
