"""A lifeline: one connection to Redis by which the reconciler sees whether a process exists.

A process that ends, however it ends, loses its connections at once: its operating system closes them. So the process
holds one connection that is subscribed to a channel of its own, `rp:life:{name}`, and the reconciler asks Redis how
many subscribers that channel has (`PUBSUB NUMSUB`). None means: the process has ended, or its way to Redis is cut.

1. The connection belongs to a thread that does nothing else, so a busy event loop does not matter.
2. Each second the thread sends a PING on it. Without an answer within two seconds, or when the connection breaks, it
   connects again, first after 50 ms, later each half second.
3. A child process that is forked without exec inherits the socket, and would keep the channel subscribed after its
   parent's death. Therefore the child closes it.
4. After each connect a second connection asks for the number of subscribers (`seen`). It is 0 where a proxy hides
   subscribers, and there is no answer where an ACL forbids the channel. The reconciler must then go by beats alone.

What an absent lifeline proves, and what else it takes for a verdict, is in `verdicts.py`.
"""

import logging
import os
import threading
import time
import weakref
from contextlib import suppress
from typing import Any

from redis import ConnectionPool
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from redis.retry import Retry

from rolloutpool_common.store import keys

__all__ = ["Lifeline"]

_log = logging.getLogger(__name__)

PING_SECONDS = 1.0
"""Between two PINGs."""
ANSWER_SECONDS = 2.0
"""Without an answer for so long a connection counts as broken."""
SLICE_SECONDS = 0.2
"""The thread looks this often whether it is to stop."""
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 0.5
"""Seconds before a reconnect: the first one, and the longest after several failures."""
TEST_AGAIN_SECONDS = 10.0
"""Between two self-tests while the channel is not seen."""


class Lifeline:
    """The lifeline of this process, kept by a thread."""

    def __init__(self, redis_url: str, name: str) -> None:
        """Prepares without connecting.

        Args:
            redis_url: The same URL as the store's: `redis://`, `rediss://` or `unix://`.
            name: A worker's id, or `sup:{id}` for a supervisor.
        """
        self._channel = keys.life(name)
        pool = ConnectionPool.from_url(
            redis_url,
            socket_timeout=ANSWER_SECONDS,
            socket_connect_timeout=ANSWER_SECONDS,
            # redis-py would connect again by itself and hide the failure.
            retry=Retry(NoBackoff(), 0),
            health_check_interval=0,
        )
        # Any: redis-py types the connections of a pool by their interface, without the arguments that it documents.
        self._connection: Any = pool.make_connection()
        self._tester: Any = pool.make_connection()
        self._seen = False
        self._tested = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lifeline", daemon=True)
        _all.add(self)

    @property
    def seen(self) -> bool:
        """Whether the last self-test found this process subscribed, so that its absence would mean something."""
        return self._seen

    @property
    def tested(self) -> bool:
        """Whether there was a self-test yet."""
        return self._tested.is_set()

    def start(self) -> None:
        """Starts the thread, and waits at most two seconds until the channel is subscribed and tested."""
        self._thread.start()
        self._tested.wait(ANSWER_SECONDS)

    def stop(self) -> None:
        """Closes the connection and ends the thread."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(ANSWER_SECONDS)
        _all.discard(self)

    def close_in_child(self) -> None:
        """Closes the inherited sockets in a forked child. The parent's connections stay open."""
        for connection in (self._connection, self._tester):
            # redis-py shuts a connection down only in the process that made it; elsewhere it closes the descriptor.
            with suppress(Exception):
                connection.disconnect()

    def _run(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                self._hold()
            # Of whatever kind: a thread that has ended would let the process look dead.
            except Exception as error:
                if time.monotonic() - began > PING_SECONDS:
                    failures = 0
                failures += 1
                if failures == 1:
                    _log.info("the lifeline broke (%s) and is connected again", type(error).__name__)
                # Redis refuses the channel, so this process can't be seen. Of a broken connection that is not known.
                if isinstance(error, ResponseError):
                    self._seen = False
                    self._tested.set()
                self._connection.disconnect()
                self._stopping.wait(min(FIRST_PAUSE * 2 ** (failures - 1), LONGEST_PAUSE))
        self._connection.disconnect()

    def _hold(self) -> None:
        """Subscribes, and stays subscribed until `stop`; raises when the connection breaks."""
        self._connection.connect()
        self._connection.send_command("SUBSCRIBE", self._channel)
        self._read()
        self._test()
        tested = time.monotonic()
        while not self._stopping.is_set():
            # Nothing is published on the channel: what can be read before the next PING is the connection's end.
            if self._can_read(PING_SECONDS):
                self._read()
                continue
            self._connection.send_command("PING")
            if self._can_read(ANSWER_SECONDS):
                self._read()
            elif not self._stopping.is_set():
                raise RedisConnectionError("no answer to a PING")
            if not self._seen and time.monotonic() - tested > TEST_AGAIN_SECONDS:
                self._test()
                tested = time.monotonic()

    def _can_read(self, seconds: float) -> bool:
        end = time.monotonic() + seconds
        while not self._stopping.is_set():
            left = end - time.monotonic()
            if self._connection.can_read(timeout=min(SLICE_SECONDS, max(left, 0))):
                return True
            if left <= 0:
                return False
        return False

    def _read(self) -> Any:
        # `push_request`: with RESP3 the confirmation of SUBSCRIBE is a push message.
        return self._connection.read_response(push_request=True)

    def _test(self) -> None:
        """Asks over an ordinary connection whether the channel has a subscriber."""
        try:
            self._tester.connect()
            self._tester.send_command("PUBSUB", "NUMSUB", self._channel)
            _, subscribers = self._tester.read_response()
            self._seen = int(subscribers) > 0
        except ResponseError:
            self._seen = False
        finally:
            self._tester.disconnect()
        self._tested.set()


_all: "weakref.WeakSet[Lifeline]" = weakref.WeakSet()


def _close_in_child() -> None:
    for lifeline in list(_all):
        lifeline.close_in_child()


os.register_at_fork(after_in_child=_close_in_child)
