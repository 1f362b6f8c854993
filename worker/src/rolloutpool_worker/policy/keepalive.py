"""TCP keep-alive: how a call notices that the other machine is gone, although no byte says so.

A machine that loses power, or a firewall that forgets a connection, ends it without a word. Such a connection is half
open: the worker waits for a reply that can't come, until the call's own limit (300 s by default). So the kernel asks:

1. A connection by which nothing has come for `IDLE_SECONDS` gets a probe. The other kernel answers it, also while its
   process is busy or samples for minutes.
2. Without an answer the probe is repeated every `INTERVAL_SECONDS`, `PROBES` times in all. Then the connection has
   failed, 60 s after the last sign of life, and the call with it.

No `TCP_USER_TIMEOUT` is set, which would bound the time for a request that is still on its way. It also ends the
connection to a trainer that reads nothing for so long: one whose event loop waits for a training step, and whose
window is full after some 64 KB. That is a slow trainer and no dead one. So the reply to a request that was lost on its
way is waited for as long as for any other.
"""

import socket
from typing import Any

IDLE_SECONDS = 30
INTERVAL_SECONDS = 10
PROBES = 3
BOUND_SECONDS = IDLE_SECONDS + PROBES * INTERVAL_SECONDS
"""From the last sign of life of the other machine to the connection's end."""

_OPTIONS = (("TCP_KEEPIDLE", IDLE_SECONDS), ("TCP_KEEPINTVL", INTERVAL_SECONDS), ("TCP_KEEPCNT", PROBES))
"""By their names, because macOS lacks the first."""


def open_socket(place: tuple[Any, ...]) -> socket.socket:
    """Makes a socket for a connection whose other side is probed; aiohttp connects it."""
    family, kind, protocol, _, _ = place
    made = socket.socket(family, kind, protocol)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _OPTIONS:
            if (option := getattr(socket, name, None)) is not None:
                made.setsockopt(socket.IPPROTO_TCP, option, value)
    except BaseException:
        made.close()
        raise
    return made
