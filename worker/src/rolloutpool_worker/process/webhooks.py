"""WebhookSender: finished results to the trainer's webhook, at least once, until taken or given up.

What is due lies in Redis, so a push outlives the worker that was about to make it. The trainer drops repeats by
`webhook-id`; results stay readable by polling whatever happens here.
"""

import asyncio
import logging
import random
import time
from contextlib import aclosing, suppress
from datetime import UTC, datetime

import httpx

from rolloutpool_common.errors import SecretUnreadable, TargetRefused
from rolloutpool_common.process import failpoints
from rolloutpool_common.protocol.push import HEADER_ID, HEADER_SIGNATURE, HEADER_TIMESTAMP, sign
from rolloutpool_common.store import Store, StoreError
from rolloutpool_common.store.keys import split_uid
from rolloutpool_common.store.records import DuePush
from rolloutpool_worker.policy import AiohttpTransport

__all__ = ["ATTEMPTS", "WebhookSender"]

_log = logging.getLogger(__name__)

ATTEMPTS = 8
"""Over about 4 minutes: 1 + 2 + 4 … seconds, with jitter."""
AT_ONCE = 16
LOOK_EVERY = 0.25
REFUSED = "TargetRefused"
GIVEN_UP_AT_ONCE = frozenset({"410", REFUSED})
TIMEOUT = 30.0


class WebhookSender:
    """One worker's share of the pushing."""

    def __init__(self, store: Store, transport: AiohttpTransport) -> None:
        self._store = store
        self._transport = transport
        self._stopped = asyncio.Event()

    def stop(self) -> None:
        """Pushes under way are ended, nothing new is begun."""
        self._stopped.set()

    async def run(self) -> None:
        """Pushes what is due until stopped."""
        while not self._stopped.is_set():
            taken = 0
            try:
                due = await self._store.pushes.take(AT_ONCE, lease_s=TIMEOUT + 10)
                taken = len(due)
                await asyncio.gather(*(self._push(push) for push in due))
            except StoreError as error:
                _log.warning("delivery: %s", error.message)
            except Exception:
                # Of whatever kind: the pushes stay due, and nobody else would notice that this worker makes none.
                _log.exception("delivery: unexpected error")
            if taken < AT_ONCE:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._stopped.wait(), LOOK_EVERY)

    async def _push(self, push: DuePush) -> None:
        batch_id, _ = split_uid(push.uid) or ("", 0)
        result = await self._store.rollouts.result(push.uid)
        try:
            target = await self._store.batches.delivery(batch_id)
            if target is None or result is None:
                await self._store.pushes.settle(push.uid, "dead")
                return
            stamp = datetime.now(UTC).isoformat()
            body = b'{"type":"rollout.finished","timestamp":"' + stamp.encode() + b'","data":' + result + b"}"
            fault = await self._post(target.callback_url, target.secret, push.uid, body)
        except (TargetRefused, SecretUnreadable) as error:
            # Another worker may have the key, but none may call the host.
            fault = REFUSED if isinstance(error, TargetRefused) else "SecretUnreadable"
            _log.error("push of %s: %s", push.uid, error.message)
        if fault is None:
            failpoints.hit("delivery.pushed_before_mark")
            await self._store.pushes.settle(push.uid, "delivered")
        elif push.attempt >= ATTEMPTS or fault in GIVEN_UP_AT_ONCE:
            _log.error("push of %s given up after %d attempts: %s", push.uid, push.attempt, fault)
            await self._store.pushes.settle(push.uid, "dead")
        else:
            wait = 2.0 ** (push.attempt - 1) * random.uniform(0.5, 1.0)
            _log.info("push of %s failed (%s), again in %.1f s", push.uid, fault, wait)
            await self._store.pushes.settle(push.uid, "retry", retry_in_s=wait)

    async def _post(self, url: str, secret: str, uid: str, body: bytes) -> str | None:
        """None when it was taken, else what was wrong."""
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
                # Nothing of the body is read: whatever it is, and however long, the status has said it.
                return None if 200 <= response.status_code < 300 else str(response.status_code)
        except (httpx.HTTPError, httpx.InvalidURL, OverflowError, UnicodeError, TimeoutError) as error:
            # The third and fourth are what becomes of an impossible port or host name.
            return type(error).__name__
