"""Holds what the worker uses of kombu beyond its documented interface, so that an upgrade breaks this file alone.

- `channel.qos.can_consume`: kombu's Redis transport calls it before each reservation, and we replace it.

`test_kombu_compat.py` runs it against the installed kombu.
"""

from collections.abc import Callable
from typing import Any


def reserve_only_while(channel: Any, has_room: Callable[[], bool]) -> None:
    """Makes a channel reserve messages only while there is room, besides kombu's own limit.

    kombu counts messages, but a message brings several rollouts.
    """
    qos = channel.qos
    may_reserve = qos.can_consume
    qos.can_consume = lambda: has_room() and may_reserve()
