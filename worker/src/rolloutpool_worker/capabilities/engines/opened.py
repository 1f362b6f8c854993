"""Engines, as a worker process and its rollouts use them."""

import asyncio
from functools import partial

from rolloutpool_common.protocol.endpoint import EndpointProtocol
from rolloutpool_common.rendering import TurnParser
from rolloutpool_common.rendering.parsing.renderers_package import load as load_renderers
from rolloutpool_common.rendering.parsing.turn_parser import needs_renderers
from rolloutpool_worker.capabilities.engines.channel import EngineChannel
from rolloutpool_worker.capabilities.engines.engines import Engines
from rolloutpool_worker.capabilities.engines.policy import EnginePolicy, Sampler
from rolloutpool_worker.capabilities.engines.recorded import RecordedEngine
from rolloutpool_worker.capabilities.engines.tokens import EngineTokens
from rolloutpool_worker.capabilities.engines.turn_attachments import TurnAttachments
from rolloutpool_worker.capability import OpenCapability, PolicyParts, WorkerCapability, WorkerDoor
from rolloutpool_worker.conversation.branch import Policy

PROTOCOLS = (EndpointProtocol.VLLM, EndpointProtocol.SGLANG)


class OpenEngines(OpenCapability):
    """The engines that the rollouts of one process are sampled by."""

    def __init__(self, door: WorkerDoor) -> None:
        """Asks nobody yet."""
        self.engines = Engines()
        self._pause_seconds = door.settings.engine_pause_seconds
        self.policies = dict.fromkeys(PROTOCOLS, self._policy)

    async def _policy(self, parts: PolicyParts) -> Policy:
        if needs_renderers(parts.tokenizer, parts.spec.response_template):
            # Seconds, once per process.
            await asyncio.to_thread(load_renderers)
        claim = parts.claim
        channel = EngineChannel(
            parts.asking,
            self.engines,
            group=None if claim.group is None else f"{claim.batch_id}/{claim.group}",
            pause_seconds=self._pause_seconds,
            stop_ids=parts.tokenizer.stop_ids,
        )
        sample = channel.sample if parts.script is None else RecordedEngine(parts.script, channel.sample).sample
        return _policy_of(parts, sample)


class WorkerEngines(WorkerCapability):
    """An inference engine samples a rollout."""

    name = "engines"
    opened = OpenEngines

    def replayed(self, parts: PolicyParts) -> Policy | None:
        """Makes the policy of a rollout that an engine has sampled; no engine is asked."""
        if parts.script is None or parts.spec.protocol not in PROTOCOLS:
            return None
        return _policy_of(parts, RecordedEngine(parts.script).sample)


def _policy_of(parts: PolicyParts, sample: Sampler) -> EnginePolicy:
    spec, tokenizer, tools, begins = parts.spec, parts.tokenizer, parts.tools, parts.begins
    parser = TurnParser.of(tokenizer, tools, spec.response_template)
    attachments = TurnAttachments(spec, parts.claim.attachment_bytes, begins) if spec.attach else None
    return EnginePolicy(sample, partial(EngineTokens, spec, tokenizer, tools, parser, begins), attachments)
