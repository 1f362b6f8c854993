"""What publishing uses of kombu beyond its documented interface, so that an upgrade breaks this file alone.

- `Producer.supports_batch_publish` and `Producer.batch`: several messages in one pipeline. celery-types lacks both.
- `connection.default_channel.client`: the Redis client of kombu's Redis transport; `queue_purge`, which kombu documents
  and its types lack.
- A queue of that transport is a list under the queue's name. kombu pushes on the left and pops on the right, so the
  last element is the oldest message. It is JSON with the message's `headers`.
- `Channel.pool` and `Channel.async_pool` of that transport: connections for commands, and those that wait for messages.
- `kombu.transport.TRANSPORT_ALIASES`: the transport of a URL by its scheme (`celery_app.py`).
- The client puts the global key prefix in front of the keys of some commands; of LINDEX it does not.

`test_kombu_compat.py` fails where one of them is gone; `test_publishing.py` shows that they do what we need.
"""

import json
from contextlib import AbstractContextManager
from typing import Any

from kombu.transport.redis import Channel, Transport

from rolloutpool_common.errors import RolloutPoolError
from rolloutpool_common.queue.celery_app import KEY_PREFIX

__all__ = ["LeanTransport", "batched", "oldest_headers", "purge"]


class _LeanChannel(Channel):
    """Takes all its connections from one pool: of two, one keeps a connection that only the start has used."""

    @property
    def pool(self) -> Any:
        """The pool that kombu keeps for what waits for messages; it is made at first use."""
        return self.async_pool


class LeanTransport(Transport):
    """kombu's Redis transport with half its connections: one for each channel, and one more while that one waits."""

    Channel = _LeanChannel


def batched(producer: Any, size: int) -> AbstractContextManager[object]:
    """Returns a context in which the producer's messages are sent together, at most `size` at a time.

    Raises:
        RolloutPoolError: an option of the broker turned pipelined publishing off.
    """
    if not producer.supports_batch_publish:
        raise RolloutPoolError("kombu's pipelined publishing is off: take retry_on_timeout out of the broker's options")
    batch: AbstractContextManager[object] = producer.batch(size)
    return batch


def oldest_headers(connection: Any, queue: str) -> dict[str, Any] | None:
    """Reads the headers of the oldest message of a queue without taking it.

    Args:
        connection: Of kombu, to the broker's Redis.
        queue: The queue's name, without the global key prefix.

    Returns:
        The headers, or None where the queue is empty.
    """
    raw = connection.default_channel.client.lindex(KEY_PREFIX + queue, -1)
    if raw is None:
        return None
    headers: dict[str, Any] = json.loads(raw)["headers"]
    return headers


def purge(connection: Any, queue: str) -> None:
    """Removes all messages of a queue.

    Args:
        connection: Of kombu, to the broker's Redis.
        queue: The queue's name, without the global key prefix.
    """
    connection.default_channel.queue_purge(queue)
