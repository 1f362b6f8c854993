"""A trainer that plays the two turns of a golden case, with its prompts, as one or the other kind of trainer."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson
from tests.support.bad_trainer import Received, bad_trainer, send

__all__ = ["GoldenTrainer", "golden_trainer"]


@dataclass
class GoldenTrainer:
    """The endpoint, and what it was asked."""

    case: Mapping[str, Any]
    keeps_ids: bool
    """Continues the ids that it sampled; otherwise renders the history again, as the case says it does."""
    strict: bool = True
    """Refuses a mask that is not as long as its own prompt demands."""
    url: str = ""
    posts: list[tuple[str, int | None]] = field(default_factory=list)
    """Key (without uid) and mask length of each request."""
    messages: list[dict[str, Any]] = field(default_factory=list)
    """Of the last request."""

    @property
    def second_prompt(self) -> list[int]:
        """What it makes of the history in turn 2."""
        case = self.case
        kept: list[int] = case["expected_token_ids"][: -len(case["sampled_ids"][1])] if self.keeps_ids else []
        rendered: list[int] = case.get("server_rerender_ids") or []
        return kept or rendered

    def new_tokens(self, *, edited: bool = False) -> int:
        """What it counts as new in turn 2."""
        prompt = self.case["server_rerender_ids"] if edited else self.second_prompt
        known = 0 if edited else len(self.case["prompt_ids"]) + len(self.case["sampled_ids"][0])
        return len(prompt) - known

    async def answer(self, request: Received, writer: asyncio.StreamWriter) -> None:
        """One turn."""
        _, _, key = (request.header("idempotency-key") or "").partition("/")
        mask, edited = request.document["response_mask"], request.header("x-history-edited") == "1"
        self.posts.append((key, None if mask is None else len(mask)))
        self.messages = request.document["messages"]
        case, turn = self.case, int(key[0])
        if turn == 1:
            prompt, expected, message = case["prompt_ids"], 0, case["assistant_message_as_parsed"]
        else:
            prompt = case["server_rerender_ids"] if edited else self.second_prompt
            expected, message = self.new_tokens(edited=edited), {"role": "assistant", "content": "done"}
        # A negative number of new tokens can be said by no mask at all.
        if self.strict and (expected < 0 or mask != ([0] * expected or None)):
            await send(writer, 422, orjson.dumps({"error": {"expected": expected}}))
            return
        ids = case["sampled_ids"][turn - 1]
        reply = {
            "id": "c",
            "created": 1,
            "choices": [{"message": message, "finish_reason": "stop"}],
            "token_ids": ids,
            "logprobs": [-0.25] * len(ids),
            "prompt_token_ids": prompt,
        }
        await send(writer, 200, orjson.dumps(reply))


@contextlib.asynccontextmanager
async def golden_trainer(
    case: Mapping[str, Any], *, keeps_ids: bool, strict: bool = True
) -> AsyncIterator[GoldenTrainer]:
    """Serves until the block ends."""
    trainer = GoldenTrainer(case, keeps_ids, strict)
    async with bad_trainer(trainer.answer) as bad:
        trainer.url = bad.url
        yield trainer
