"""How a trainer is asked for a turn."""

from rolloutpool_worker.policy.body import MessageBytes, TurnBody
from rolloutpool_worker.policy.breaker import Breakers, TrainerDown
from rolloutpool_worker.policy.callback import CallbackChannel, Echo, Reply, TurnCall
from rolloutpool_worker.policy.http import Caller
from rolloutpool_worker.policy.resolver import Resolver

__all__ = [
    "Breakers",
    "CallbackChannel",
    "Caller",
    "Echo",
    "MessageBytes",
    "Reply",
    "Resolver",
    "TrainerDown",
    "TurnBody",
    "TurnCall",
]
