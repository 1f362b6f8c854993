"""Holds what publishing uses of kombu beyond its documented interface, so that an upgrade breaks this file alone.

- `Producer.supports_batch_publish` and `Producer.batch`: several messages in one pipeline. celery-types lacks both.
- `connection.default_channel.client`: the Redis client of kombu's Redis transport; `queue_purge`, which kombu documents
  and its types lack.
- A queue of that transport is a list under the queue's name. kombu pushes on the left and pops on the right, so the
  last element is the oldest message. It is JSON with the message's `headers`.
- `Transport.connection_errors`, after which Celery's consumer begins anew, and `channel_errors`: what Redis refuses.
- `Channel.pool`, `async_pool`, `_get_pool` and `_connparams` of it: connections for commands, and those that
  wait for messages. What closes a channel disconnects `_pool`, which stays None here.
- `kombu.transport.TRANSPORT_ALIASES`: the transport of a URL by its scheme (`celery_app.py`).
- The client puts the global key prefix in front of the keys of some commands; of LINDEX it does not.

`test_kombu_compat.py` fails where one of them is gone; `test_publishing.py` shows that they do what we need.
"""

import json
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kombu.exceptions import OperationalError
from kombu.transport.redis import Channel, Transport

from rolloutpool_common.errors import RolloutPoolError
from rolloutpool_common.queue.celery_app import KEY_PREFIX

_shared: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
"""The pool for each set of parameters that channels have."""
_sharing = threading.Lock()


class _LeanChannel(Channel):
    """Waits for messages on connections of its own, and has commands sent by those that all channels share."""

    _commands: Any = None

    def __init__(self, *args: Any, **options: Any) -> None:
        """Connects, and closes again what only this start needs."""
        super().__init__(*args, **options)
        self.async_pool.disconnect()

    @property
    def pool(self) -> Any:
        """This process's pool for commands. kombu never disconnects it, because another channel may use it."""
        if self._commands is None:
            channel: Any = super()
            name = repr(sorted(channel._connparams().items(), key=str))  # noqa: SLF001
            with _sharing:
                self._commands = _shared.get(name)
                if self._commands is None:
                    self._commands = _shared[name] = channel._get_pool()  # noqa: SLF001
        return self._commands


class LeanTransport(Transport):
    """kombu's Redis transport with few connections: one for each channel that waits, and one for all commands."""

    Channel = _LeanChannel
    # A Redis may refuse all writes for a while: too few replicas, a full disk, a fail-over. The consumer ended for good
    # then, and its worker stood among the living until it had drained.
    connection_errors = (*Transport.connection_errors, *Transport.channel_errors)


@contextmanager
def batched(producer: Any, size: int) -> Iterator[None]:
    """Sends the producer's messages of the block together, at most `size` at a time."""
    if not producer.supports_batch_publish:
        raise RolloutPoolError("kombu's pipelined publishing is off: take retry_on_timeout out of the broker's options")
    try:
        with producer.batch(size):
            yield
    except RuntimeError as error:
        # Where Redis was started again, kombu connects anew, and takes no more messages into the batch.
        raise OperationalError(str(error)) from error


def oldest_headers(connection: Any, queue: str) -> dict[str, Any] | None:
    """Reads the headers of the oldest message of a queue without taking it."""
    channel = connection.default_channel
    try:
        raw = channel.client.lindex(KEY_PREFIX + queue, -1)
    except connection.connection_errors as error:
        # kombu has made the channel, so it puts no error of its own in the place of redis-py's.
        raise OperationalError(str(error)) from error
    if raw is None:
        return None
    headers: dict[str, Any] = json.loads(raw)["headers"]
    return headers


def purge(connection: Any, queue: str) -> None:
    """Removes all messages of a queue."""
    connection.default_channel.queue_purge(queue)
