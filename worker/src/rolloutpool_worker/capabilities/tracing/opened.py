"""Tracing, as a worker process and the attempts in it use it."""

import asyncio
import hashlib

from rolloutpool_common.errors import RolloutPoolError
from rolloutpool_common.store import Claim
from rolloutpool_worker.capability import OpenCapability, WorkerCapability, WorkerDoor
from rolloutpool_worker.tracing import NO_TRACE, RolloutTrace


class TracingUnavailable(RolloutPoolError):
    """Traces are wanted, and OpenTelemetry is not installed."""


class OpenTracing(OpenCapability):
    """Follows the rollouts of one process."""

    def __init__(self, endpoint: str, sample: float) -> None:
        """Starts the thread that sends spans."""
        try:
            from rolloutpool_worker.capabilities.tracing.sender import SpanSender
            from rolloutpool_worker.capabilities.tracing.spans import AttemptSpans
        except ImportError as error:
            raise TracingUnavailable(
                f"ROLLOUTPOOL_OTEL_ENDPOINT is set, and {error.name} is not installed: install rolloutpool-worker[otel]"
            ) from None
        self._sender = SpanSender(endpoint)
        self._spans = AttemptSpans
        self._sample = sample

    def trace(self, claim: Claim) -> RolloutTrace:
        """Begins the spans of an attempt at a rollout; `NO_TRACE` where its group is not sampled."""
        # The siblings of a group are compared with each other, so all of them are traced or none.
        name = f"{claim.batch_id} {claim.group}" if claim.group else claim.uid
        digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
        if int.from_bytes(digest) >= self._sample * 2**64:
            return NO_TRACE
        return self._spans(self._sender, claim)

    async def close(self) -> None:
        """Sends what is left."""
        await asyncio.to_thread(self._sender.close)


class WorkerTracing(WorkerCapability):
    """Rollouts are traced, where the operator wants it."""

    name = "tracing"

    def open(self, door: WorkerDoor) -> OpenCapability:
        """Connects to the collector; without one, this is no part of the process."""
        settings = door.settings
        return (
            OpenTracing(settings.otel_endpoint, settings.otel_sample)
            if settings.otel_endpoint
            else OpenCapability(door)
        )
