"""Says which policy a rollout is sampled by.

- A trainer's callback (`CallbackPolicy`) renders the prompts itself. Its echoes are checked, and masks are planned.
- An engine is asked with ids by a capability, which makes the policy. The first prompt is rendered here, so it shows
  the tools that the rollout may call.
- What answers with messages alone is asked by a capability. There is no tokenizer, and no token.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from rolloutpool_common.errors import RequestFault
from rolloutpool_common.protocol.options import RolloutSpec
from rolloutpool_common.rendering import ChatTokenizer
from rolloutpool_common.store import Claim
from rolloutpool_worker.capability import PolicyParts
from rolloutpool_worker.conversation.beginning import Beginning
from rolloutpool_worker.conversation.branch import Policy
from rolloutpool_worker.conversation.callback_policy import CallbackPolicy
from rolloutpool_worker.conversation.tokens import TokenTrack
from rolloutpool_worker.policy.asking import Asking
from rolloutpool_worker.policy.callback import CallbackChannel
from rolloutpool_worker.recorded.stand_ins import RecordedCallback
from rolloutpool_worker.rollout.services import Services
from rolloutpool_worker.tools import TOOLS, Tool


class Policies:
    """Makes the policies of one attempt."""

    def __init__(
        self,
        services: Services,
        claim: Claim,
        asking: Asking,
        tokenizer: ChatTokenizer | None,
        tools: Mapping[str, Tool],
        beginning: Beginning | None,
    ) -> None:
        """Asks nobody."""
        self._services = services
        self._claim = claim
        self._asking = asking
        self._tokenizer = tokenizer
        self._tools = tools
        self._beginning = beginning

    async def open(
        self, shown: Sequence[dict[str, Any]] | None = None, sampling: Mapping[str, Any] | None = None
    ) -> Policy:
        """Makes a policy; nothing is asked yet.

        With `shown` it is one that is told these tools, which run elsewhere; with `sampling` one that samples with
        these parameters in the place of the rollout's.
        """
        services, claim, asking = self._services, self._claim, self._asking
        tokenizer, beginning, spec = self._tokenizer, self._beginning, claim.spec
        changed = dict(sampling or {})
        if shown and not spec.token_in:
            # No trainer knows them from elsewhere. An engine is asked with ids, in which they are rendered already.
            changed["tools"] = list(shown)
        if changed:
            spec, asking = _sampling(spec, changed), replace(asking, spec=_sampling(asking.spec, changed))
        own = [tool.shown for tool in self._tools.values()] if shown is None else list(shown)
        if tokenizer is None:
            if services.messages_policy is None:
                raise RequestFault("this worker asks nobody who answers with messages alone")
            return services.messages_policy(asking, own)
        if spec.token_in:
            parts = PolicyParts(claim, spec, asking, tokenizer, own)
            if beginning is not None:
                parts = replace(parts, script=beginning.script, begins=beginning.turn)
            return await services.policies[spec.protocol](parts)
        if shown is None and spec.environment is None:
            # All tools of this worker, not only those that the rollout may call: the trainer decides which ones its
            # prompt shows, and `FirstPrompt` finds that out. In an environment it is told them.
            own = [tool.shown for tool in TOOLS.values()]
        callback = (
            CallbackChannel(asking, services.trainers)
            if beginning is None
            else RecordedCallback(beginning.script, asking, services.trainers)
        )
        kind = await services.kinds.of(spec)
        plain = shown is None and not spec.v1 and spec.environment is None
        compares_tools = plain and services.batches.is_first(claim.batch_id, spec.tools)
        agreement = services.kinds.agreement(spec)
        track = partial(TokenTrack, spec, tokenizer, own, kind, agreement, compares_tools=compares_tools)
        return CallbackPolicy(callback, track)


def _sampling(spec: RolloutSpec, changed: Mapping[str, Any]) -> RolloutSpec:
    return spec.model_copy(update={"sampling_params": spec.sampling_params.model_copy(update=changed)})
