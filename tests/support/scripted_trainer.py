"""A trainer whose turns a test writes down: what is said, what is called, and how sampling ended."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
from tests.support.bad_trainer import BadTrainer, Received, bad_trainer, send

from rolloutpool_common.protocol.completions import HEADER_KEEPS_IDS
from rolloutpool_common.rendering import ChatTokenizer
from rolloutpool_common.tokens.ledger import TokenLedger

__all__ = ["Say", "ScriptedTrainer", "call", "scripted_trainer"]

_ids = itertools.count()


def call(name: str, arguments: Any = "{}", call_id: str | None = None) -> dict[str, Any]:
    """A tool call; arguments that are no text become a JSON object."""
    return {
        "id": call_id or f"call_{next(_ids)}",
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


@dataclass(frozen=True)
class Say:
    """One turn."""

    text: str = "done"
    calls: Sequence[dict[str, Any]] = ()
    finish_reason: str = "stop"
    tokens: int | None = None
    """Sample so many tokens, whatever the text has."""


@dataclass
class ScriptedTrainer:
    """The endpoint, and what each rollout's tokens are from its side."""

    bad: BadTrainer
    ledgers: dict[str, TokenLedger] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """Where it listens."""
        return self.bad.url

    def of(self, uid: str) -> list[Received]:
        """What one rollout asked."""
        return self.bad.of(uid)


@contextlib.asynccontextmanager
async def scripted_trainer(tokenizer: ChatTokenizer, *turns: Say) -> AsyncIterator[ScriptedTrainer]:
    """Serves these turns to every rollout; the last one again and again. It keeps the ids that it sampled.

    What is asked a second time under the same key is answered as the first time.
    """
    replies: dict[tuple[str | None, bytes], bytes] = {}

    async def answer(request: Received, writer: asyncio.StreamWriter) -> None:
        asked = request.header("idempotency-key"), request.body
        if asked not in replies:
            replies[asked] = sampled(request)
        await send(writer, 200, replies[asked], ((HEADER_KEEPS_IDS, "true"),))

    def sampled(request: Received) -> bytes:
        turn = turns[min(request.turn, len(turns)) - 1]
        messages = request.document["messages"]
        if request.turn == 1:
            ledger = trainer.ledgers[request.uid] = TokenLedger()
            ledger.seed(tokenizer.render_prompt(messages))
        else:
            ledger = trainer.ledgers[request.uid]
            last = max(i for i, message in enumerate(messages) if message["role"] == "assistant")
            delta = tokenizer.render_delta(messages[last + 1 :], last_sampled_id=ledger.ids[-1])
            ledger.append_close(list(delta.close_ids), turn=request.turn)
            ledger.append_glue(list(delta.glue_ids), turn=request.turn)
        prompt = list(ledger.ids)
        ids = tokenizer.encode(turn.text) or tokenizer.encode(" ")
        if turn.tokens is not None:
            ids = (ids * turn.tokens)[: turn.tokens]
        elif turn.finish_reason != "length" and tokenizer.close_id is not None:
            ids.append(tokenizer.close_id)
        ledger.append_sampled(ids, [-0.5] * len(ids), turn=request.turn)
        message = {"role": "assistant", "content": turn.text, "tool_calls": list(turn.calls) or None}
        reply = {
            "id": "c",
            "created": 1,
            "choices": [{"message": message, "finish_reason": turn.finish_reason}],
            "token_ids": ids,
            "logprobs": [-0.5] * len(ids),
            "prompt_token_ids": prompt,
        }
        return orjson.dumps(reply)

    async with bad_trainer(answer) as bad:
        trainer = ScriptedTrainer(bad)
        yield trainer
