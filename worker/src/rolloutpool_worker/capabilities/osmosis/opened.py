"""The Osmosis wire, as a worker process uses it."""

from typing import Any

from rolloutpool_worker.capabilities.osmosis.channel import ChatChannel
from rolloutpool_worker.capabilities.osmosis.policy import ChatPolicy
from rolloutpool_worker.capability import OpenCapability, WorkerCapability
from rolloutpool_worker.conversation.branch import Policy
from rolloutpool_worker.policy.asking import Asking


class OpenOsmosis(OpenCapability):
    """The part of one process: controllers are asked."""

    def messages_policy(self, asking: Asking, tools: list[dict[str, Any]]) -> Policy:
        """Makes the policy of a rollout that has no tokens."""
        channel = ChatChannel(asking)
        channel.shown = tools
        return ChatPolicy(channel)


class WorkerOsmosis(WorkerCapability):
    """A controller samples a rollout, and keeps its ids."""

    name = "osmosis"
    opened = OpenOsmosis
