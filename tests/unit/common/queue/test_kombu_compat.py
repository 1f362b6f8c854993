"""The internals of kombu that publishing uses are still there; a failure here names the one that is gone."""

import inspect
import json
from typing import Any

import pytest
from kombu import Producer
from kombu.transport import redis as transport

from rolloutpool_common.errors import RolloutPoolError
from rolloutpool_common.queue.celery_app import KEY_PREFIX, make_celery
from rolloutpool_common.queue.kombu_compat import LeanTransport, batched, oldest_headers


def test_a_producer_sends_in_batches() -> None:
    assert isinstance(inspect.getattr_static(Producer, "supports_batch_publish"), property)
    assert "max_size" in inspect.signature(inspect.getattr_static(Producer, "batch")).parameters


def test_a_producer_without_batches_is_refused_with_the_reason() -> None:
    class Single:
        supports_batch_publish = False

    with pytest.raises(RolloutPoolError, match="retry_on_timeout"), batched(Single(), 10):
        pass


@pytest.mark.parametrize("scheme", ["redis", "rediss", "unix"])
def test_what_closes_a_channel_leaves_the_shared_pool(scheme: str) -> None:
    url = "unix:///tmp/redis.sock" if scheme == "unix" else f"{scheme}://127.0.0.1:1/0"
    with make_celery(url).connection_for_write() as connection:
        assert connection.get_transport_cls() is LeanTransport
    # Both are kombu's own names. What closes a channel closes the second, and the first by a name that we leave empty.
    for name in ("pool", "async_pool"):
        assert isinstance(inspect.getattr_static(transport.Channel, name), property)
    closes = inspect.getsource(inspect.getattr_static(transport.Channel, "_disconnect_pools"))
    assert "self._pool" in closes
    assert "self.pool" not in closes
    assert {"_get_pool", "_connparams"} <= set(dir(transport.Channel))


def test_the_oldest_message_is_the_last_of_its_list() -> None:
    # The transport pushes on the left and pops on the right.
    assert "lpush" in inspect.getsource(transport.Channel._put)
    assert "rpop" in inspect.getsource(transport.Channel._get)
    # Its client leaves the key of LINDEX alone, so the prefix is ours to add.
    assert "LINDEX" not in transport.GlobalKeyPrefixMixin.PREFIXED_SIMPLE_COMMANDS
    assert "LINDEX" not in transport.GlobalKeyPrefixMixin.PREFIXED_COMPLEX_COMMANDS


def test_the_oldest_messages_headers_are_read_from_its_json() -> None:
    class Client:
        def __init__(self, raw: str | None) -> None:
            self.raw = raw
            self.default_channel = self
            self.client = self

        def lindex(self, key: str, index: int) -> str | None:
            assert (key, index) == (KEY_PREFIX + "q", -1)
            return self.raw

    assert oldest_headers(Client(None), "q") is None
    message: dict[str, Any] = {"headers": {"a": 1}, "body": ""}
    assert oldest_headers(Client(json.dumps(message)), "q") == {"a": 1}
