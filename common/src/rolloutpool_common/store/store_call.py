"""A call: one command on its way to Redis, and the future that its caller awaits.

A worker with many rollouts in flight writes many journal records in one tick. One script that takes all of them costs
Redis half as much as one each, and is one answer to read (docs/decisions/0006). So a call may be a part of another one:

1. A part has ARGV of its own, and is not written down yet. The sender puts those of one tick together (`join`).
2. Their script takes the ARGV of all parts, one after the other, treats each by itself, and returns an answer each.
3. The joint call gives each part its answer, or its error. If its connection breaks, the parts are sent again.

    journal(u1, t1, 0, 1, r1), journal(u2, t2, 4, 3, r2)   ->   EVALSHA journal 0 u1 t1 0 1 r1 u2 t2 4 3 r2
    [["ok", 1], ["fenced", -1]]                            ->   u1 has ["ok", 1], u2 has ["fenced", -1]
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from redis.exceptions import InvalidResponse

from rolloutpool_common.store.errors import store_error
from rolloutpool_common.store.redis_compat import pack_command


class StoreScript:
    """A script's name, text and hash."""

    __slots__ = ("name", "sha", "text")

    def __init__(self, name: str, text: str, sha: str) -> None:
        self.name, self.text, self.sha = name, text, sha


class StoreCall(asyncio.Future[Any]):
    """One command."""

    name: str
    """Of its script, or what stands in metrics for a command."""
    begun: float
    """On the clock of `time.perf_counter`."""
    script: StoreScript | None = None
    args: tuple[Any, ...] = ()
    """The script's ARGV."""
    data: bytes = b""
    """As it is written; empty for a part."""
    size: int
    """Bytes, of a part about."""
    has_text = False
    """Whether `data` has the script's text, for a Redis that doesn't know it."""
    tries = 0
    """Connections that broke under it."""

    @property
    def parts(self) -> "Sequence[StoreCall]":
        """Returns what is sent again if its connection breaks."""
        return (self,)

    def bring_text(self) -> None:
        """Writes it down with its script's text."""
        assert self.script is not None
        self.data, self.has_text = pack_command(("EVAL", self.script.text, 0, *self.args)), True

    def refuse(self, error: BaseException) -> None:
        """Gives it an error, as the store's, unless its caller has gone."""
        if not self.done():
            self.set_exception(store_error(error))

    def forget(self) -> None:
        """Says that nobody looks at its error, as asyncio would complain of it."""
        _ = self.cancelled() or self.exception()


class JointCall(StoreCall):
    """Calls of one script that travel as one."""

    parts: Sequence[StoreCall] = ()

    def set_result(self, answers: Any) -> None:
        """Gives each part its own."""
        if len(answers) != len(self.parts):
            return self.refuse(InvalidResponse("not as many answers as there are parts"))
        for part, answer in zip(self.parts, answers, strict=True):
            if isinstance(answer, Exception):
                part.refuse(answer)
            elif not part.done():
                part.set_result(answer)

    def refuse(self, error: BaseException) -> None:
        """Gives it to all parts."""
        for part in self.parts:
            part.refuse(error)


def join(parts: Sequence[StoreCall]) -> JointCall:
    """Makes one call of parts that have the same script."""
    first = parts[0]
    assert first.script is not None
    call = JointCall(loop=first.get_loop())
    call.name, call.begun, call.script, call.parts = first.name, first.begun, first.script, parts
    call.args = tuple([arg for part in parts for arg in part.args])
    call.data = pack_command(("EVALSHA", first.script.sha, 0, *call.args))
    call.size = len(call.data)
    return call
