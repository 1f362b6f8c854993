"""The internals of kombu that `kombu_compat` uses still work; a failure here names the one that changed."""

import inspect
from typing import Any, cast

from kombu import Connection
from kombu.transport.redis import Channel, MultiChannelPoller

from rolloutpool_worker.queue.kombu_compat import reserve_only_while


def test_a_channel_reserves_only_while_there_is_room() -> None:
    room = False
    with Connection("memory://") as connection:
        channel: Any = cast(Any, connection).default_channel
        channel.basic_qos(0, 1, False)
        reserve_only_while(channel, lambda: room)
        assert not channel.qos.can_consume()
        room = True
        assert channel.qos.can_consume()
        channel.qos.append(object(), "tag")
        assert not channel.qos.can_consume(), "kombu's own limit must still hold"


def test_the_redis_transport_asks_before_each_reservation() -> None:
    # By name: a unit test has no Redis. tests/acceptance/test_slots.py shows the effect.
    assert "qos.can_consume()" in inspect.getsource(MultiChannelPoller)
    assert hasattr(Channel, "qos")
