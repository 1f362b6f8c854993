"""WebhookSender: pushes finished results to the trainer's webhook, at least once each.

What is due is kept in Redis (`pushes`), so a push outlives the worker that was about to make it. A push that
fails is tried again later, by any worker, as long as its batch is kept. The trainer drops repeats by their
`webhook-id`. Results can be read from the API all the same, also when a push is given up.

A push may fail for itself, as with a 400, or because its receiver is down: no connection, no answer, 429 or 5xx. Then
all pushes for this receiver wait, for a time that doubles up to ten minutes, and one of them tries it again.

The answer to each beat says whether any results are to be pushed. Only then does the sender look for due ones, so a
pool without webhooks pays nothing for them.

Each push is a task of its own, and no push waits for another. A receiver (a webhook of one owner, without its query)
has at most `SHARE` of a worker's `AT_ONCE` pushes, and an owner `OWNER_SHARE`. So one that hangs holds its share for
`TIMEOUT`, and the rest goes on to the others.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import aclosing, suppress
from datetime import UTC, datetime
from typing import Any

import httpx

from rolloutpool_common.capabilities.webhooks.push import HEADER_ID, HEADER_SIGNATURE, HEADER_TIMESTAMP, sign
from rolloutpool_common.capabilities.webhooks.pushes import DuePush, Pushes
from rolloutpool_common.errors import SecretUnreadable, TargetRefused
from rolloutpool_common.process import failpoints
from rolloutpool_common.process.backoff import Backoff
from rolloutpool_common.process.logs import log_event
from rolloutpool_common.store import Store, StoreError
from rolloutpool_common.store.keys import split_uid
from rolloutpool_worker.policy.transport import AiohttpTransport

_log = logging.getLogger(__name__)

BACKOFF = Backoff(first_s=1.0, longest_s=600.0)
"""Ten minutes after a receiver is back at the latest, it gets what it missed."""
AT_ONCE = 32
"""Pushes that one worker makes at the same time."""
SHARE = 8
"""How many of them may go to one receiver."""
OWNER_SHARE = 16
"""How many of them may be one owner's."""
LOOK_EVERY = 0.25
"""Seconds until the next look for due pushes, where no push ends before."""
LOOK_PAUSE = 0.05
"""Seconds between two looks at least, so that many pushes that end in one moment cause one look."""
TIMEOUT = 30.0
"""Seconds for one push, from the connection to the status line."""
LEASE_SLACK = 10.0
"""Seconds that a lease outlives `TIMEOUT`, so that no other worker takes a push that may still succeed."""
REFUSED = "TargetRefused"
UNREADABLE = "SecretUnreadable"
GIVEN_UP_AT_ONCE = frozenset({"410", REFUSED})
"""The receiver says that it is gone for good, or no worker may call it."""
BUSY = frozenset({"408", "425", "429"})
"""Statuses below 500 that say nothing of the push, and that its receiver has no time."""


class WebhookSender:
    """One worker's share of the pushing."""

    def __init__(self, store: Store, transport: AiohttpTransport) -> None:
        self._store = store
        self._pushes = Pushes(store)
        self._transport = transport
        self._stopped = asyncio.Event()
        self._busy: Counter[str] = Counter()
        """Pushes under way, by receiver."""
        self._wake = asyncio.Event()
        """Set when a push has ended, and its place is free."""
        self._pending = asyncio.Event()
        """Set while there may be something to push; until the first beat nobody knows."""
        self._pending.set()

    def stop(self) -> None:
        """Begins no more pushes; those under way are completed."""
        self._stopped.set()
        self._wake.set()
        self._pending.set()

    def heard(self, notes: Mapping[str, Any]) -> None:
        """Has the sender look for due pushes, or rest where there are none; called with the answer to each beat."""
        if notes["pushes"] or self._stopped.is_set():
            self._pending.set()
        else:
            self._pending.clear()

    async def run(self) -> None:
        """Pushes what is due, until `stop` is called and the pushes under way have ended."""
        async with asyncio.TaskGroup() as pushing:
            while not self._stopped.is_set():
                # Before the look: a push that ends during it causes another one.
                self._wake.clear()
                try:
                    await self._begin(pushing)
                except StoreError as error:
                    _log.warning("delivery: %s", error.message)
                except Exception:
                    # If this loop ended, nothing would notice that this worker pushes no more.
                    _log.exception("delivery: unexpected error")
                # Not `wait_for`: in Python 3.11 it swallows a cancellation that comes with the end of a push.
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_EVERY):
                        await self._wake.wait()
                await asyncio.sleep(LOOK_PAUSE)
                await self._pending.wait()

    async def _begin(self, pushing: asyncio.TaskGroup) -> None:
        """Begins as many due pushes as there are free places."""
        free = AT_ONCE - self._busy.total()
        if not free:
            return
        lease_s = TIMEOUT + LEASE_SLACK
        shares = {"share": SHARE, "owner_share": OWNER_SHARE}
        for push in await self._pushes.take(free, lease_s=lease_s, busy=self._busy, **shares):
            # Counted before the task runs, so that the next look has the right number of free places.
            self._busy[push.receiver] += 1
            pushing.create_task(self._push_and_free(push))

    async def _push_and_free(self, push: DuePush) -> None:
        """Makes one push; whatever goes wrong, the push stays due, and its place becomes free."""
        try:
            await self._push(push)
        except StoreError as error:
            log_event(_log, logging.WARNING, "push failed", rollout_uid=push.uid, why=error.message)
        except Exception:
            _log.exception("unexpected error in the push of %s", push.uid)
        finally:
            self._busy[push.receiver] -= 1
            if not self._busy[push.receiver]:
                del self._busy[push.receiver]
            self._wake.set()

    async def _push(self, push: DuePush) -> None:
        batch_id, _ = split_uid(push.uid) or ("", 0)
        result = await self._store.rollouts.result(push.uid)
        try:
            target = await self._pushes.target(batch_id)
            # The batch was deleted, or it has no webhook: no later attempt can succeed.
            if target is None or result is None:
                await self._pushes.settle(push, "dead")
                return
            stamp = datetime.now(UTC).isoformat()
            # The stored result is JSON already, so it is not parsed only to be written again.
            body = b'{"type":"rollout.finished","timestamp":"' + stamp.encode() + b'","data":' + result + b"}"
            fault = await self._post(target.callback_url, target.secret, push.uid, body)
        except (TargetRefused, SecretUnreadable) as error:
            # Another worker may have the key that this one lacks. The host is refused by all of them.
            fault = REFUSED if isinstance(error, TargetRefused) else UNREADABLE
            log_event(_log, logging.ERROR, "push refused", rollout_uid=push.uid, why=error.message)
        if fault is None:
            failpoints.hit("delivery.pushed_before_mark")
            await self._pushes.settle(push, "delivered")
        elif fault in GIVEN_UP_AT_ONCE:
            log_event(_log, logging.ERROR, "push given up", rollout_uid=push.uid, attempts=push.attempt, why=fault)
            await self._pushes.settle(push, "dead")
        else:
            # A redirect or a 4xx is about this push, and the key is this worker's. Else all others would fail alike.
            down = fault in BUSY or not (fault.startswith(("3", "4")) or fault == UNREADABLE)
            wait = BACKOFF.delay_s(push.failures + 1 if down else push.attempt)
            log_event(_log, logging.INFO, "push failed", rollout_uid=push.uid, why=fault, again_in_s=round(wait, 1))
            await self._pushes.settle(push, "down" if down else "retry", retry_in_s=wait)

    async def _post(self, url: str, secret: str, uid: str, body: bytes) -> str | None:
        """Makes one push; returns None when the receiver took it, else what was wrong."""
        now = int(time.time())
        headers = {
            "Content-Type": "application/json",
            HEADER_ID: uid,
            HEADER_TIMESTAMP: str(now),
            HEADER_SIGNATURE: sign(secret, uid, now, body),
        }
        try:
            request = httpx.Request("POST", url, headers=headers, content=body)
            async with (
                asyncio.timeout(TIMEOUT),
                aclosing(await self._transport.handle_async_request(request)) as response,
            ):
                # The status says it all, so nothing of the body is read, however long it is.
                return None if 200 <= response.status_code < 300 else str(response.status_code)
        except (httpx.HTTPError, httpx.InvalidURL, OverflowError, UnicodeError, TimeoutError) as error:
            # OverflowError and UnicodeError are what an impossible port or host name raises.
            return type(error).__name__
