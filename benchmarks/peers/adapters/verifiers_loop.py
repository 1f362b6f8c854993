"""verifiers, in one process: its agent, its interception server, and a harness whose loop runs in the same process.

    python -m benchmarks.peers.adapters.verifiers_loop

With `with_ids` its train client renders each prompt to ids and posts ids, and the trace has ids, masks and logprobs.
Without it its default client passes chat completions on, and the trace has messages.
"""

import asyncio
import logging
from typing import Any

import in_process_harness as harness
import verifiers.v1 as vf
from benchmarks.peers.adapters.commands import Sampled, serve
from renderers import Qwen3RendererConfig
from verifiers.v1.interception import InterceptionServer


class Verifiers:
    """The loop."""

    packages: tuple[str, ...] = ("verifiers", "renderers", "openai", "transformers", "aiohttp", "httpx")

    async def start(self, options: dict[str, Any]) -> list[int]:
        """Starts the interception server, which all rollouts share."""
        logging.getLogger("verifiers").setLevel(logging.WARNING)
        self._with_ids: bool = options["with_ids"]
        self._client: vf.BaseClientConfig = (
            vf.TrainClientConfig(
                base_url=options["url"],
                api_key_var="NO_KEY",
                renderer=Qwen3RendererConfig(),
                renderer_model_name=options["tokenizer"],
            )
            if self._with_ids
            else vf.EvalClientConfig(base_url=options["url"], api_key_var="NO_KEY")
        )
        self._interception = InterceptionServer()
        await self._interception.__aenter__()
        return []

    def prepare(self, load: dict[str, Any]) -> None:
        """Part of the protocol."""
        harness.tools[:] = load["tools"]
        self._in_flight = load["in_flight"]
        self._tasks = [
            (
                rollout["id"],
                vf.Task(
                    harness.RolloutData(
                        idx=number, prompt=rollout["messages"], rollout_id=rollout["id"], turns=load["turns"]
                    )
                ),
            )
            for number, rollout in enumerate(load["rollouts"])
        ]
        self._traces: list[Any] = []

    async def run(self) -> None:
        """Part of the protocol."""
        slots = asyncio.Semaphore(self._in_flight)

        async def in_slot(name: str, task: Any) -> Any:
            async with slots:
                return await self._agent(name).run(task)

        self._traces = await asyncio.gather(*(in_slot(name, task) for name, task in self._tasks))

    def _agent(self, name: str) -> vf.Agent:
        # Where ids go out, the salt of the cache is the one field of a request that can name the rollout.
        sampling = {"cache_salt": name} if self._with_ids else {}
        config = vf.AgentConfig(
            harness=vf.HarnessConfig(id="in_process_harness"),
            runtime=vf.SubprocessConfig(),
            model="default",
            client=self._client,
            sampling=vf.SamplingConfig(**sampling),
        )
        return vf.Agent(config, interception=self._interception)

    def finished(self) -> int:
        """Part of the protocol."""
        return sum(trace.ok and trace.branches[-1].messages[-1].role == "assistant" for trace in self._traces)

    def samples(self, count: int) -> list[Sampled | None]:
        """Returns what the trace's one branch says."""
        if not self._with_ids:
            return [None] * min(count, len(self._traces))
        branches = [trace.branches[0] for trace in self._traces[:count]]
        return [(branch.token_ids, [int(sampled) for sampled in branch.sampled_mask]) for branch in branches]

    async def stop(self) -> None:
        """Stops the server."""
        await self._interception.__aexit__(None, None, None)


if __name__ == "__main__":
    serve(Verifiers())
