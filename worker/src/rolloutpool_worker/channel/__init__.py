"""How a trainer is asked for a turn."""

from rolloutpool_worker.channel.callback import CallbackChannel, Echo, Reply, TurnCall
from rolloutpool_worker.channel.clients import ClientPool

__all__ = ["CallbackChannel", "ClientPool", "Echo", "Reply", "TurnCall"]
