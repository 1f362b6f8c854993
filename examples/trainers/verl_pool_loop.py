"""verl trains through a pool: an AgentLoop whose policy is verl's own servers (verl 0.9.1).

1. Put this file on the PYTHONPATH of verl's nodes, and register its loop in a file `pool_loop.yaml`:

       - name: pool
         _target_: verl_pool_loop.PoolAgentLoop

2. Set POOL_URL, POOL_TOKENIZER (the policy's own, as the pool's workers find it) and POOL_CALLBACK_HOST (the node's
   address, as the workers reach it), and start verl with these:

       actor_rollout_ref.rollout.agent.agent_loop_config_path=pool_loop.yaml
       actor_rollout_ref.rollout.agent.default_agent_loop=pool
       actor_rollout_ref.rollout.calculate_log_probs=True
       actor_rollout_ref.rollout.prompt_length=512 actor_rollout_ref.rollout.response_length=2048

3. Each AgentLoopWorker serves an endpoint (`ENDPOINT`). The pool runs the agent loop and the tools, and asks it for
   turns, prompt ids in and sampled ids out; it hands them to verl's `server_manager`, so weights are verl's to update.
4. The reward is what a grader or an environment of the pool says. Put `rewarded` into the place of another one.
"""

import asyncio
import os
from contextlib import ExitStack
from typing import Any

from rolloutpool_common.rendering import load_tokenizer
from rolloutpool_trainer import FinishedRollout, GenerateParams, Generation, callback_app, serve_callback
from rolloutpool_trainer.adapters.driver import PoolDriver
from rolloutpool_trainer.adapters.verl import agent_loop

TOKENIZER = load_tokenizer(os.environ["POOL_TOKENIZER"])
PROMPT_LENGTH, RESPONSE_LENGTH = 512, 2048


class Servers:
    """The policy: verl's servers, on the event loop of verl."""

    def __init__(self) -> None:
        self.manager: Any = None
        self.loop: asyncio.AbstractEventLoop | None = None

    async def __call__(self, prompt_ids: list[int], params: GenerateParams) -> Generation:
        """Samples one turn; a rollout stays on one server, which has its prefix in the cache."""
        assert self.loop is not None
        sampling = {"temperature": params.temperature, "top_p": params.top_p, "max_tokens": params.max_tokens}
        sampling |= {"logprobs": True, **params.extra}
        asked = self.manager.generate(request_id=params.rollout_id, prompt_ids=prompt_ids, sampling_params=sampling)
        # The endpoint has an event loop of its own, and Ray's answers come on verl's.
        output = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(asked, self.loop))
        ended = output.token_ids[-1] in TOKENIZER.stop_ids
        return Generation(
            token_ids=output.token_ids, logprobs=output.log_probs, finish_reason="stop" if ended else "length"
        )


def rewarded(rollout: FinishedRollout) -> float:
    """What the pool says that a rollout is worth."""
    return rollout.reward or 0.0


servers = Servers()
app = callback_app(servers, tokenizer=TOKENIZER, tools=os.environ["POOL_URL"])
# It is served as long as somebody has this, so as long as this module lives.
SERVING = ExitStack()
ENDPOINT = SERVING.enter_context(serve_callback(app, ports=[0], host=os.environ["POOL_CALLBACK_HOST"]))
driver = PoolDriver(
    os.environ["POOL_URL"], trainer=ENDPOINT.urls, defaults={"tokenizer_name": os.environ["POOL_TOKENIZER"]}
)
_Loop: Any = agent_loop(driver, rewarded, prompt_length=PROMPT_LENGTH, response_length=RESPONSE_LENGTH)


class PoolAgentLoop(_Loop):  # type: ignore[misc]  # verl is not installed where this is checked
    """Runs one rollout in the pool."""

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> Any:
        """Runs the prompt of a row of verl's dataset."""
        servers.manager, servers.loop = self.server_manager, asyncio.get_running_loop()
        return await super().run({"max_tokens": RESPONSE_LENGTH, **sampling_params}, **kwargs)
