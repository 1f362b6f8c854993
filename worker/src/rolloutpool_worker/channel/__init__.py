"""How a trainer is asked for a turn."""

from rolloutpool_worker.channel.breaker import Breakers, PortDown
from rolloutpool_worker.channel.callback import CallbackChannel, Echo, Reply, TurnCall
from rolloutpool_worker.channel.clients import ClientPool
from rolloutpool_worker.channel.connector import Connector

__all__ = ["Breakers", "CallbackChannel", "ClientPool", "Connector", "Echo", "PortDown", "Reply", "TurnCall"]
