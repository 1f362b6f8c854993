"""DoorCalls: how a door has calls answered.

1. The door has an address, which stays over its restarts, and a number for each start, which it renews in Redis every
   second. A call's holder is both, and a number of the connection. When a door is started again, or is gone for some
   seconds, the calls of the start before it are known to be cut, and their repetitions find the same turns.
2. Workers publish what they have answered in the door's channel. One connection hears it, and wakes who waits.
3. A call may bring back a session that no worker has. Its ticket is published here and at once, because the API, which
   publishes everything else, looks once a second.
4. That a program has its reply is noted with its session's next call, or a second later. Were this door killed before,
   the call would count as cut, and an equal one would get the same turn.
5. Who waits looks after its call every two seconds (`Sessions.look_after`), in case a worker has died with it.
"""

import asyncio
import itertools
import secrets
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, TypeVar

import structlog

from rolloutpool_common.capabilities.harness.calls import HeardCall, ModelCall
from rolloutpool_common.capabilities.harness.news import News
from rolloutpool_common.capabilities.harness.sessions import Arrival, OpenSession, Sessions, TakenCall
from rolloutpool_common.process.background import BackgroundTask
from rolloutpool_common.queue.publisher import Publisher
from rolloutpool_common.store import Store, StoreError, StoreUnavailable

T = TypeVar("T")

_log = structlog.stdlib.get_logger(__name__)

BEAT_SECONDS = 1.0
LOOK_SECONDS = 2.0
AGAIN_SECONDS = 0.25
"""Between two tries while Redis does not answer."""
KNOWN_SECONDS = 60.0
"""How long what a session is, which never changes, is remembered. A session that is gone is noticed by its calls."""
MOST_KNOWN = 10_000
MOST_STORED = 1_000
"""Sessions of which a door knows what is stored: up to 100 kB each. Of others it sends the history once more."""


class DoorCalls:
    """The calls that one door holds."""

    def __init__(self, store: Store, address: str, publisher: Publisher) -> None:
        """`address` is host and port, without blanks."""
        self.store = store
        self._publisher = publisher
        self._woken = asyncio.Event()
        """Set when an outbox has the ticket of a session that a call has brought back."""
        self.sessions = Sessions(store)
        self._address = address
        self._start = secrets.token_hex(8)
        self._connections = itertools.count(1)
        self._waiting: dict[str, asyncio.Future[dict[str, Any] | None]] = {}
        self._taking: Counter[str] = Counter()
        """Of sessions how many calls are being stored."""
        self._early: dict[str, dict[str, dict[str, Any]]] = {}
        """Of these sessions the replies of which was told before Redis had said which number their calls have."""
        self._known: OrderedDict[str, tuple[float, OpenSession]] = OrderedDict()
        self._stored: OrderedDict[str, set[str]] = OrderedDict()
        """Of sessions the digests of what this door has stored: a history is sent to Redis once."""
        self._heard: dict[str, list[tuple[float, HeardCall]]] = {}
        """Of sessions the calls that were given away to the last byte, and when: their next call brings the note."""
        self._beating, self._listening, self._publishing = map(BackgroundTask, ("beat", "listen", "publish"))

    def start(self) -> None:
        """Begins to beat, to listen and to publish."""
        self._beating.start(self._beat())
        self._listening.start(self._listen())
        self._publishing.start(self._publish())

    async def stop(self) -> None:
        """Ends that, and disconnects; the calls that are held count as cut."""
        for task in (self._beating, self._listening, self._publishing):
            await task.stop()
        with suppress(StoreError):
            await self._note_heard(0.0)
            await self.sessions.leave(self._address)
        self._publisher.close()
        await self.store.close()

    def holder(self) -> str:
        """Names the next connection."""
        return f"{self._address} {self._start} {next(self._connections)}"

    async def session(self, uid: str, end: float) -> OpenSession | None:
        """Returns a session, also one that has ended; None where there is none. Waits for Redis until `end`."""
        now = time.monotonic()
        known = self._known.get(uid)
        if known is not None and now - known[0] < KNOWN_SECONDS:
            return known[1]
        found = await self._patiently(lambda: self.sessions.open(uid), end)
        if found is not None:
            self._known[uid] = now, found
            self._known.move_to_end(uid)
            while len(self._known) > MOST_KNOWN:
                self._known.popitem(last=False)
        return found

    async def history(self, uid: str, n: int, end: float) -> list[dict[str, Any]] | None:
        """Returns the messages of a call, and its reply behind them; None where there is no such reply."""
        return await self._patiently(lambda: self.sessions.history(uid, n), end)

    async def replies(self, uid: str, numbers: Sequence[int], end: float) -> list[dict[str, Any] | None]:
        """Returns the replies to some calls; None where there is none."""
        return await self._patiently(lambda: self.sessions.replies(uid, numbers), end)

    async def take(self, session: OpenSession, call: ModelCall, came: Arrival, *, end: float) -> TakenCall:
        """Stores a call, or finds the one that it repeats; while Redis does not answer, tries again until `end`.

        A call is known by its connection, so it may be stored once more where only the answer was lost.
        """
        uid = session.uid
        heard = [call for _, call in self._heard.pop(uid, ())]
        self._taking[uid] += 1
        try:
            taken = await self._patiently(
                lambda: self.sessions.take(session, call, came, stored=self._stored_of(uid), heard=heard), end
            )
            early = self._early.get(uid, {}).pop(f"{uid} {taken.n}", None)
        finally:
            self._taking[uid] -= 1
            if not self._taking[uid]:
                del self._taking[uid]
                self._early.pop(uid, None)
        if taken.woken:
            self._woken.set()
        return taken if early is None else replace(taken, reply=early)

    @staticmethod
    async def _patiently(ask: Callable[[], Awaitable[T]], end: float) -> T:
        """Asks Redis, again until `end` while it does not answer."""
        while True:
            try:
                return await ask()
            except StoreUnavailable:
                if time.monotonic() >= end:
                    raise
            await asyncio.sleep(AGAIN_SECONDS)

    def _stored_of(self, uid: str) -> set[str]:
        """Returns what this door knows to be stored of a session."""
        found = self._stored.setdefault(uid, set())
        self._stored.move_to_end(uid)
        while len(self._stored) > MOST_STORED:
            self._stored.popitem(last=False)
        return found

    @contextmanager
    def waiting(self, uid: str, n: int) -> Iterator["asyncio.Future[dict[str, Any] | None]"]:
        """Gives what is done once the call is answered, with None where it can be answered no more."""
        key = f"{uid} {n}"
        reply: asyncio.Future[dict[str, Any] | None] = asyncio.get_running_loop().create_future()
        self._waiting[key] = reply
        try:
            yield reply
        finally:
            if self._waiting.get(key) is reply:
                del self._waiting[key]

    async def look_after(self, uid: str, call: TakenCall, reply: "asyncio.Future[dict[str, Any] | None]") -> bool:
        """Looks for a reply of which nobody has told, and for a worker that has lost sight of the call.

        Returns whether Redis has the call; it may have lost it.
        """
        # Redis may be away, or be started again: then the call waits, and nothing is lost.
        with suppress(StoreError):
            found = await self.sessions.look_after(uid, call)
            if not reply.done() and (found.reply is not None or found.outcome == "over"):
                reply.set_result(found.reply)
            return found.outcome != "forgotten"
        return True

    def heard(self, uid: str, n: int, holder: str) -> None:
        """Notes that the program has the last byte: with the session's next call, or a second later."""
        self._heard.setdefault(uid, []).append((time.monotonic(), HeardCall(n, holder)))

    async def cut(self, uid: str, n: int, holder: str) -> None:
        """Notes that the connection ended before."""
        # Unnoted, the call counts as held until this door ends, and its program's repetition says so itself.
        with suppress(StoreError):
            await self.sessions.hear(uid, n, holder, taken=False)

    async def _note_heard(self, seconds: float) -> None:
        """Notes the calls that were given away so many seconds ago, where no other call has brought the note."""
        before = time.monotonic() - seconds
        late = {uid: calls for uid, calls in self._heard.items() if calls[0][0] <= before}
        for uid in late:
            del self._heard[uid]
        await asyncio.gather(
            *[
                self.sessions.hear(uid, call.n, call.holder, taken=True)
                for uid, calls in late.items()
                for _, call in calls
            ]
        )

    async def _beat(self) -> None:
        while True:
            try:
                await self.sessions.beat(self._address, self._start)
                await self._note_heard(BEAT_SECONDS)
            except StoreError as error:
                _log.warning("redis does not answer the door", error=error.message)
            await asyncio.sleep(BEAT_SECONDS)

    async def _publish(self) -> None:
        while True:
            await self._woken.wait()
            self._woken.clear()
            # What this misses, the API finds in the outbox.
            with suppress(StoreError):
                await self._publisher.pump()

    async def _listen(self) -> None:
        while True:
            with suppress(StoreError):
                await News.of_door(self.store, self._address).listen(self._wake)
            # Redis may have been started again, without what was stored last.
            self._stored.clear()
            self._early.clear()
            await asyncio.sleep(BEAT_SECONDS / 2)

    def _wake(self, heard: bytes) -> None:
        call, reply = News.reply(heard)
        waits, uid = self._waiting.get(call), call.partition(" ")[0]
        if waits is not None and not waits.done():
            waits.set_result(reply)
        elif waits is None and uid in self._taking:
            self._early.setdefault(uid, {})[call] = reply
