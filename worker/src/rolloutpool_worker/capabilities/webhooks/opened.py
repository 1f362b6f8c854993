"""Webhooks, as a worker process uses them."""

from rolloutpool_worker.capabilities.webhooks.sender import WebhookSender
from rolloutpool_worker.capability import OpenCapability, WorkerCapability, WorkerDoor


class OpenWebhooks(OpenCapability):
    """Each shared process pushes its share of what is due."""

    def __init__(self, door: WorkerDoor) -> None:
        """Pushes nothing yet."""
        self.part = WebhookSender(door.store, door.transport)


class WorkerWebhooks(WorkerCapability):
    """Results are pushed."""

    name = "webhooks"
    opened = OpenWebhooks
