"""A trainer on one port that is down, slow, wrong and right in turn. Behind it is the public `callback_app`."""

import asyncio
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from tests.support.tiny_tokenizers import write_tokenizer

from rolloutpool_common.rendering import TINY, ChatTokenizer, load_tokenizer
from rolloutpool_common.testing import TINY_TOKENIZER
from rolloutpool_trainer import callback_app, serve_callback
from rolloutpool_trainer.testing import ScriptedPolicy

REASON = "weights of step 12 are being loaded"
TEMPLATE_REASON = "this template cannot show tools"
STEP_SECONDS = 0.2
"""How soon a slow trainer answers after it has become right."""
SLOW_SECONDS = 40.0
"""Per turn. It is no fault for the pool, whose limit is 300 s, but such a batch looks like one that hangs."""


class Manner(StrEnum):
    """How the trainer is."""

    DOWN = "down"
    """Nothing listens on its port."""
    SLOW = "slow"
    """It answers after `SLOW_SECONDS`."""
    BUSY = "busy"
    """It answers 503, and says why in the body."""
    LYING = "lying"
    """From turn 2 on it reports a prompt with one other id among those that it has sampled."""
    UNEQUAL = "unequal"
    """It reports one log-probability less than ids."""
    TEMPLATE = "template"
    """Its chat template raises an error, which it answers with 400."""
    RIGHT = "right"


class Trainer:
    """The endpoint. `manner` may change while it is served."""

    def __init__(self, pool_url: str, folder: Path) -> None:
        """Takes a free port, and serves nothing yet.

        Args:
            pool_url: Its tools are what prompts show.
            folder: For a tokenizer whose template fails.
        """
        self.manner = Manner.RIGHT
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = int(free.getsockname()[1])
        self.url = f"http://127.0.0.1:{self.port}"
        tokenizer = load_tokenizer(TINY)
        self._right = _app(tokenizer, tokenizer, pool_url)
        self._template = _app(tokenizer, _with_failing_template(folder), pool_url)
        self._prompts: dict[str, int] = {}
        """By rollout, the length of its first prompt."""

    @contextmanager
    def served(self) -> Iterator[None]:
        """Listens until the block ends."""
        with serve_callback(self, [self.port]):
            yield

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers as the manner says; what is no turn, rightly."""
        manner = self.manner
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._right(scope, receive, send)
        elif manner is Manner.BUSY:
            # Without its request's key it would be taken for any server, whose words are shown to nobody.
            key = dict(scope["headers"]).get(b"idempotency-key", b"")
            await _answer(send, 503, {"error": {"message": REASON}}, [(b"x-turn-key", key)])
        elif manner is Manner.TEMPLATE:
            await self._template(scope, receive, send)
        elif manner in (Manner.LYING, Manner.UNEQUAL):
            await self._changed(scope, receive, send, manner)
        else:
            for _ in range(int(SLOW_SECONDS / STEP_SECONDS)):
                if self.manner is Manner.SLOW:
                    await asyncio.sleep(STEP_SECONDS)
            await self._right(scope, receive, send)

    async def _changed(self, scope: Scope, receive: Receive, send: Send, manner: Manner) -> None:
        """Sends another answer than the right one."""
        parts: list[Message] = []

        async def keep(message: Message) -> None:
            parts.append(message)

        await self._right(scope, receive, keep)
        start, body = parts[0], b"".join(part.get("body", b"") for part in parts[1:])
        document = json.loads(body)
        if start["status"] == 200:
            if manner is Manner.UNEQUAL:
                document["logprobs"].pop()
            else:
                self._lie(scope, document)
        headers = [(name, value) for name, value in start["headers"] if name != b"content-length"]
        await _answer(send, start["status"], document, headers)

    def _lie(self, scope: Scope, document: dict[str, Any]) -> None:
        key = dict(scope["headers"])[b"idempotency-key"].decode()
        uid, ids = key.partition("/")[0], document["prompt_token_ids"]
        first = self._prompts.setdefault(uid, len(ids))
        if len(ids) > first:
            ids[first + 2] += 1


def _app(policy: ChatTokenizer, tokenizer: ChatTokenizer, pool_url: str) -> ASGIApp:
    return callback_app(
        ScriptedPolicy(policy, latency=0.2), tokenizer=tokenizer, tools=pool_url, policy_version="step-12"
    )


def _with_failing_template(folder: Path) -> ChatTokenizer:
    template = (TINY_TOKENIZER / "chat_template.jinja").read_text(encoding="utf-8")
    fails = f"{{% if tools %}}{{{{ raise_exception('{TEMPLATE_REASON}') }}}}{{% endif %}}"
    write_tokenizer(folder, fails + template)
    return load_tokenizer(str(folder))


async def _answer(send: Send, status: int, document: object, headers: list[tuple[bytes, bytes]] | None = None) -> None:
    body = json.dumps(document).encode()
    length = (b"content-length", str(len(body)).encode())
    kind = [(b"content-type", b"application/json")] if headers is None else headers
    await send({"type": "http.response.start", "status": status, "headers": [*kind, length]})
    await send({"type": "http.response.body", "body": body})
