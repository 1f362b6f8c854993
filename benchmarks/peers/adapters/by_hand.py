"""A loop as people write it: the openai client, transformers, and a mask from the difference of two lengths.

    python -m benchmarks.peers.adapters.by_hand

Each turn renders the whole history again. Tokens that are new since the last sample are not trained on, and those that
the policy sampled are. This is right as long as a reply that is rendered again has the length that was sampled.
"""

import asyncio
from dataclasses import dataclass
from typing import Any

from benchmarks.peers.adapters.commands import Sampled, add, serve
from openai import AsyncOpenAI
from transformers import AutoTokenizer


@dataclass(frozen=True)
class _Rollout:
    history: list[dict[str, Any]]
    ids: list[int]
    """The last prompt as it was rendered, and what was sampled behind it."""
    mask: list[int]


class ByHand:
    """The loop."""

    packages: tuple[str, ...] = ("openai", "transformers", "tokenizers")

    async def start(self, options: dict[str, Any]) -> list[int]:
        """Loads the tokenizer and makes the client."""
        self._tokenizer = AutoTokenizer.from_pretrained(options["tokenizer"])
        self._client = AsyncOpenAI(base_url=options["url"], api_key="none", max_retries=0, timeout=600)
        return []

    def prepare(self, load: dict[str, Any]) -> None:
        """Part of the protocol."""
        self._load = load
        self._done: list[_Rollout] = []

    async def run(self) -> None:
        """Part of the protocol."""
        slots = asyncio.Semaphore(self._load["in_flight"])

        async def in_slot(rollout: dict[str, Any]) -> _Rollout:
            async with slots:
                return await self._rollout(rollout)

        self._done = await asyncio.gather(*(in_slot(rollout) for rollout in self._load["rollouts"]))

    async def _rollout(self, rollout: dict[str, Any]) -> "_Rollout":
        history = list(rollout["messages"])
        ids: list[int] = []
        mask: list[int] = []
        for _ in range(self._load["turns"]):
            prompt = self._render(history)
            mask += [0] * (len(prompt) - len(mask))
            reply = await self._client.chat.completions.create(
                model="default",
                messages=history,
                tools=self._load["tools"],
                logprobs=True,
                extra_body={"rollout_id": rollout["id"], "return_token_ids": True},
            )
            choice = reply.choices[0]
            ids = [*prompt, *choice.token_ids]
            mask += [1] * len(choice.token_ids)
            message = choice.message.model_dump(exclude_none=True)
            history.append(message)
            if not choice.message.tool_calls:
                break
            history += [
                {"role": "tool", "tool_call_id": call.id, "content": add(call.function.arguments)}
                for call in choice.message.tool_calls
            ]
        return _Rollout(history, ids, mask)

    def _render(self, history: list[dict[str, Any]]) -> list[int]:
        rendered: Any = self._tokenizer.apply_chat_template(
            history, tools=self._load["tools"], add_generation_prompt=True, tokenize=True, return_dict=False
        )
        return list(rendered)

    def finished(self) -> int:
        """Part of the protocol."""
        return sum(rollout.history[-1]["role"] == "assistant" for rollout in self._done)

    def samples(self, count: int) -> list[Sampled | None]:
        """Part of the protocol."""
        return [(rollout.ids, rollout.mask) for rollout in self._done[:count]]

    async def stop(self) -> None:
        """Closes the client."""
        await self._client.close()


if __name__ == "__main__":
    serve(ByHand())
