"""A lifeline: one connection to Redis by which the reconciler sees whether a process exists.

A process that ends, however it ends, loses its connections at once: its operating system closes them. So the process
holds one connection that is subscribed to a channel of its own, `rp:life:{name}`, and the reconciler asks Redis how
many subscribers that channel has (`PUBSUB NUMSUB`). None means: the process has ended, or its way to Redis is cut.

1. The connection belongs to a thread that does nothing else, so a busy event loop does not matter.
2. A worker's beats go over the same connection, twice a second, from the same thread: `Heart` says what they tell and
   hears the answers. A supervisor's lifeline sends a PING each second instead. Without an answer within two seconds, or
   when the connection breaks, the thread connects again, first after 50 ms, later each half second.
3. A connection that is subscribed takes commands only with RESP3. Where the URL asks for RESP2, or the server knows no
   other, the thread has a second connection for what it says.
4. A child process that is forked without exec inherits the sockets, and would keep the channel subscribed after its
   parent's death. Therefore the child closes them.
5. After each connect the thread asks for the number of subscribers (`seen`). It is 0 where a proxy hides subscribers,
   and the channel is refused where an ACL forbids it. The reconciler must then go by beats alone.

What an absent lifeline proves, and what else it takes for a verdict, is in `verdicts.py`.
"""

import hashlib
import logging
import os
import threading
import time
import weakref
from contextlib import suppress
from typing import Any, Protocol

from redis import ConnectionPool
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, ResponseError
from redis.retry import Retry

from rolloutpool_common.store import keys
from rolloutpool_common.store.answers import named
from rolloutpool_common.store.connection import source_of
from rolloutpool_common.store.schema import OLDEST_READ, SCHEMA_VERSION, check_version
from rolloutpool_common.store.workers import BEAT_SECONDS

_log = logging.getLogger(__name__)

RESP3 = 3
PING_SECONDS = 1.0
"""Between two PINGs of a process without beats."""
ANSWER_SECONDS = 2.0
"""Without an answer for so long a connection counts as broken."""
SLICE_SECONDS = 0.2
"""The thread looks this often whether it is to stop."""
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 0.5
"""Seconds before a reconnect: the first one, and the longest after several failures."""
TEST_AGAIN_SECONDS = 10.0
"""Between two self-tests while the channel is not seen."""
_BEAT_SHA = hashlib.sha1(source_of("beat").encode()).hexdigest()


class Heart(Protocol):
    """Holds what a worker's beats say. Both methods are called in the lifeline's thread, and must not wait."""

    def beat(self) -> tuple[Any, ...] | None:
        """Returns what `beat.lua` is given; None where the worker has nothing to say yet."""

    def hear(self, answer: list[Any]) -> None:
        """Takes what `beat.lua` has answered."""


class Lifeline:
    """The lifeline of this process, kept by a thread."""

    def __init__(self, redis_url: str, name: str, heart: Heart | None = None) -> None:
        """Prepares without connecting."""
        self._channel = keys.life(name)
        self._heart = heart
        self._url = redis_url
        # Any: redis-py types the connections of a pool by their interface, without the arguments that it documents.
        self._connection: Any = self._make(protocol=3)
        self._speaker: Any = self._connection
        """The connection for beats and questions."""
        self.seen = False
        """Whether the last self-test found this process subscribed, so that its absence would mean something."""
        self._tested = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lifeline", daemon=True)
        _all.add(self)

    def _make(self, protocol: int) -> Any:
        pool = ConnectionPool.from_url(
            self._url,
            socket_timeout=ANSWER_SECONDS,
            socket_connect_timeout=ANSWER_SECONDS,
            # redis-py would connect again by itself and hide the failure.
            retry=Retry(NoBackoff(), 0),
            health_check_interval=0,
            protocol=protocol,
        )
        return pool.make_connection()

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
        for connection in (self._connection, self._speaker):
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
                    _log.info("the lifeline broke (%s); it connects again until it holds", type(error).__name__)
                self._disconnect()
                self._stopping.wait(min(FIRST_PAUSE * 2 ** (failures - 1), LONGEST_PAUSE))
        self._disconnect()

    def _hold(self) -> None:
        """Subscribes, beats, and stays connected until `stop`; raises when a connection breaks."""
        subscribed = self._subscribe()
        tested = time.monotonic()
        pause = PING_SECONDS if self._heart is None else BEAT_SECONDS
        while not self._stopping.is_set():
            self._speak()
            if self._speaker is not self._connection:
                # The beat says nothing of the other connection, which may hang half-open.
                self._connection.send_command("PING")
                if not self._can_read(ANSWER_SECONDS):
                    raise RedisConnectionError("no answer to a PING")
                self._connection.read_response(push_request=True)
            # Nothing is published on the channel: what can be read before the next beat is the connection's end.
            if self._can_read(pause):
                self._connection.read_response(push_request=True)
            if subscribed and not self.seen and time.monotonic() - tested > TEST_AGAIN_SECONDS:
                self._test()
                tested = time.monotonic()

    def _subscribe(self) -> bool:
        """Connects; returns whether Redis has let this process subscribe to its channel."""
        try:
            self._connection.connect()
        except ResponseError:
            # It knows no RESP3: a proxy, for example. So the channel has a connection of its own.
            self._connection = self._make(protocol=2)
            self._connection.connect()
        # The URL may ask for RESP2 as well.
        shared = int(self._connection.get_protocol()) == RESP3
        if not shared and self._speaker is not self._connection:
            self._speaker.disconnect()
        self._speaker = self._connection if shared else self._make(protocol=2)
        if not shared:
            self._speaker.connect()
        self._greet()
        self._connection.send_command("SUBSCRIBE", self._channel)
        try:
            self._connection.read_response(push_request=True)
        except ResponseError:
            # An ACL forbids the channel, so this process can't be seen. Of a broken connection that is not known.
            self.seen = False
            self._tested.set()
            return False
        self._test()
        return True

    def _greet(self) -> None:
        """Checks the version of the data before the first beat, as each connection of the store does."""
        if self._heart is None:
            return
        with suppress(ResponseError):
            check_version(named(self._ask("EVAL", source_of("epoch"), 0, SCHEMA_VERSION, OLDEST_READ))["schema"])

    def _speak(self) -> None:
        """Sends a beat, or a PING where there is nothing to say; raises where no answer comes."""
        told = None if self._heart is None else self._heart.beat()
        if self._heart is None or told is None:
            self._ask("PING")
            return
        try:
            answer = self._ask("EVALSHA", _BEAT_SHA, 0, *told)
        except NoScriptError:
            answer = self._ask("EVAL", source_of("beat"), 0, *told)
        except ResponseError as error:
            # A Redis that is full or loads its data refuses the beat. The process is there all the same.
            _log.warning("a beat was refused: %s", type(error).__name__)
            return
        self._heart.hear(answer)

    def _ask(self, *command: Any) -> Any:
        self._speaker.send_command(*command)
        end = time.monotonic() + ANSWER_SECONDS
        while not self._speaker.can_read(timeout=SLICE_SECONDS):
            if self._stopping.is_set() or time.monotonic() > end:
                raise RedisConnectionError("no answer")
        return self._speaker.read_response()

    def _can_read(self, seconds: float) -> bool:
        end = time.monotonic() + seconds
        while not self._stopping.is_set():
            left = end - time.monotonic()
            if self._connection.can_read(timeout=min(SLICE_SECONDS, max(left, 0))):
                return True
            if left <= 0:
                return False
        return False

    def _test(self) -> None:
        """Asks whether the channel has a subscriber."""
        try:
            _, subscribers = self._ask("PUBSUB", "NUMSUB", self._channel)
            self.seen = int(subscribers) > 0
        except ResponseError:
            self.seen = False
        self._tested.set()

    def _disconnect(self) -> None:
        for connection in (self._connection, self._speaker):
            connection.disconnect()


_all: "weakref.WeakSet[Lifeline]" = weakref.WeakSet()


def _close_in_child() -> None:
    for lifeline in list(_all):
        lifeline.close_in_child()


os.register_at_fork(after_in_child=_close_in_child)
