"""How a trainer is asked for a turn."""

from rolloutpool_worker.channel.body import MessageBytes, TurnBody
from rolloutpool_worker.channel.breaker import Breakers, PortDown
from rolloutpool_worker.channel.callback import CallbackChannel, Echo, Reply, TurnCall
from rolloutpool_worker.channel.caller import Caller
from rolloutpool_worker.channel.resolver import Resolver

__all__ = [
    "Breakers",
    "CallbackChannel",
    "Caller",
    "Echo",
    "MessageBytes",
    "PortDown",
    "Reply",
    "Resolver",
    "TurnBody",
    "TurnCall",
]
