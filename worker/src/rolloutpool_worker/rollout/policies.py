"""Says which policy a rollout is sampled by.

- A trainer's callback (`CallbackPolicy`) renders the prompts itself. Its echoes are checked, and masks are planned.
- An engine (`EnginePolicy`) is asked with the ledger's ids. The first prompt is rendered here, so it shows the tools
  that the rollout may call; and the sampled text is parsed here.
- A controller of the Osmosis wire (`ChatPolicy`) answers with messages alone. There is no tokenizer, and no token.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

from rolloutpool_common.rendering import ChatTokenizer, TurnParser
from rolloutpool_common.rendering.parsing import load_renderers, needs_renderers
from rolloutpool_common.store import Claim
from rolloutpool_worker.conversation.branch import Policy
from rolloutpool_worker.conversation.callback_policy import CallbackPolicy
from rolloutpool_worker.conversation.chat_policy import ChatPolicy
from rolloutpool_worker.conversation.engine_policy import EnginePolicy
from rolloutpool_worker.conversation.engine_tokens import EngineTokens
from rolloutpool_worker.conversation.tokens import TokenTrack
from rolloutpool_worker.policy import CallbackChannel, ChatChannel, EngineChannel
from rolloutpool_worker.policy.callback import BeforeCall, ungated
from rolloutpool_worker.policy.endpoint import ReplyLimits
from rolloutpool_worker.policy.waits import RolloutWaits
from rolloutpool_worker.recorded import RecordedCallback, RecordedEngine, Script
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
    # The channel alone gets the secrets in plain text. The other spec, which results are made from, keeps them sealed.
    opened = services.store.with_secrets(spec)
    reply_limits = ReplyLimits(int(settings.max_reply_mb * 1_000_000), settings.max_reply_objects)
    if spec.token_in and tokenizer is not None:
        own = [tool.shown for tool in tools.values()] if shown is None else list(shown)
        if needs_renderers(tokenizer, spec.response_template):
            # Seconds, once per process.
            await asyncio.to_thread(load_renderers)
        parser = TurnParser.of(tokenizer, own, spec.response_template)
        engine_of: Callable[..., EngineChannel] = EngineChannel if script is None else partial(RecordedEngine, script)
        engine = engine_of(
            services.turns,
            opened,
            uid=claim.uid,
            group=None if claim.group is None else f"{claim.batch_id}/{claim.group}",
            attempt=claim.attempt,
            attempts=settings.trainer_attempts,
            reply_limits=reply_limits,
            pause_seconds=settings.engine_pause_seconds,
            stop_ids=tokenizer.stop_ids,
            pause=pause or services.drain.pause,
            breakers=services.breakers,
            engines=services.engines,
            waits=waits,
            trace=trace,
            before_call=before_call,
        )
        return EnginePolicy(engine, partial(EngineTokens, spec, tokenizer, own, parser))
    callback_of: Callable[..., CallbackChannel] = CallbackChannel if tokenizer is not None else ChatChannel
    if script is not None:
        callback_of = partial(RecordedCallback, script)
    callback = callback_of(
        services.turns,
        opened,
        uid=claim.uid,
        attempt=claim.attempt,
        attempts=settings.trainer_attempts,
        reply_limits=reply_limits,
        pause=pause or services.drain.pause,
        breakers=services.breakers,
        trainers=services.trainers,
        waits=waits,
        trace=trace,
        before_call=before_call,
    )
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
