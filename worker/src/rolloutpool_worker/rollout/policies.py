"""Says which policy a rollout is sampled by.

- A trainer's callback (`CallbackPolicy`) renders the prompts itself. Its echoes are checked, and masks are planned.
- An engine is asked with ids by a capability, which makes the policy. The first prompt is rendered here, so it shows
  the tools that the rollout may call.
- A controller of the Osmosis wire (`ChatPolicy`) answers with messages alone. There is no tokenizer, and no token.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

from rolloutpool_common.rendering import ChatTokenizer
from rolloutpool_common.store import Claim
from rolloutpool_worker.capability import PolicyParts
from rolloutpool_worker.conversation.branch import Policy
from rolloutpool_worker.conversation.callback_policy import CallbackPolicy
from rolloutpool_worker.conversation.chat_policy import ChatPolicy
from rolloutpool_worker.conversation.tokens import TokenTrack
from rolloutpool_worker.policy import Asking, CallbackChannel, ChatChannel
from rolloutpool_worker.policy.asking import BeforeCall, ungated
from rolloutpool_worker.policy.endpoint import ReplyLimits
from rolloutpool_worker.policy.waits import RolloutWaits
from rolloutpool_worker.recorded import RecordedCallback, Script
from rolloutpool_worker.rollout.services import Services
from rolloutpool_worker.tools import TOOLS, Tool
from rolloutpool_worker.tracing import NO_TRACE, RolloutTrace


async def open_policy(
    services: Services,
    claim: Claim,
    waits: RolloutWaits,
    tokenizer: ChatTokenizer | None,
    tools: Mapping[str, Tool],
    trace: RolloutTrace = NO_TRACE,
    script: Script | None = None,
    *,
    pause: Callable[[float], Awaitable[None]] | None = None,
    before_call: BeforeCall = ungated,
    shown: Sequence[dict[str, Any]] | None = None,
    sampling: Mapping[str, Any] | None = None,
) -> Policy:
    """Makes the policy of one attempt; nothing is asked yet.

    With `shown` it is one that is told these tools, which run elsewhere; with `sampling` one that samples with these
    parameters in the place of the rollout's.
    """
    spec, settings = claim.spec, services.settings
    changed = dict(sampling or {})
    if shown and not spec.token_in:
        # No trainer knows them from elsewhere. An engine is asked with ids, in which they are rendered already.
        changed["tools"] = list(shown)
    if changed:
        spec = spec.model_copy(update={"sampling_params": spec.sampling_params.model_copy(update=changed)})
    asking = Asking(
        services.turns,
        services.store.with_secrets(spec),
        uid=claim.uid,
        attempt=claim.attempt,
        attempts=settings.trainer_attempts,
        reply_limits=ReplyLimits(int(settings.max_reply_mb * 1_000_000), settings.max_reply_objects),
        pause=pause or services.drain.pause,
        breakers=services.breakers,
        waits=waits,
        trace=trace,
        before_call=before_call,
    )
    if spec.token_in and tokenizer is not None:
        own = [tool.shown for tool in tools.values()] if shown is None else list(shown)
        return await services.policies[spec.protocol](PolicyParts(claim, spec, asking, tokenizer, own, script))
    callback_of: Callable[..., CallbackChannel] = CallbackChannel if tokenizer is not None else ChatChannel
    if script is not None:
        callback_of = partial(RecordedCallback, script)
    callback = callback_of(asking, services.trainers)
    if tokenizer is None:
        assert isinstance(callback, ChatChannel)
        callback.shown = [tool.shown for tool in tools.values()]
        return ChatPolicy(callback)
    # All tools of this worker, not only those that the rollout may call: the trainer decides which ones its prompt
    # shows, and `FirstPrompt` finds that out. In an environment it is told them.
    own = (
        [tool.shown for tool in (TOOLS.values() if spec.environment is None else tools.values())]
        if shown is None
        else list(shown)
    )
    kind = await services.kinds.of(spec)
    plain = shown is None and not spec.v1 and spec.environment is None
    compares_tools = plain and services.batches.is_first(claim.batch_id, spec.tools)
    agreement = services.kinds.agreement(spec)
    track = partial(TokenTrack, spec, tokenizer, own, kind, agreement, compares_tools=compares_tools)
    return CallbackPolicy(callback, track)
