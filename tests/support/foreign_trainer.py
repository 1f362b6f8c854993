"""A trainer of somebody else's, on a real socket: it knows transformers and tokenizers, and nothing of this project.

It declares nothing, echoes its prompts, and refuses each `response_mask` that is not what it counts itself. How it
makes the prompt of a turn from 2 on is its kind (`ForeignKind`):

- It keeps ids: what it has, then what the template writes behind the last turn. For that it renders the whole history
  with a mark in the place of what the policy said last, and takes all that follows the mark and the turn's end, which
  it knows by hand.
- It renders the whole history, with the arguments of calls as they came: as text.
- It parses these arguments first, as vLLM does, and renders then.
"""

import contextlib
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from tests.support.threaded_server import QuietHandler, serving
from tests.tokenizers.libraries import chat, whole

Message = dict[str, Any]
_MARK = "wYyW"


class ForeignKind(StrEnum):
    """What a trainer does with history."""

    KEEPS_IDS = "keeps ids"
    RENDERS_TEXT = "renders arguments as text"
    RENDERS_PARSED = "renders parsed arguments"


@dataclass(frozen=True)
class ForeignTurn:
    """What the policy samples in a turn, and what is parsed from that."""

    text: str
    """With its stop, unless that is withheld."""
    message: Message


@dataclass(frozen=True)
class LoggedPrompt:
    """A turn that was sampled."""

    prompt: list[int]
    sampled: list[int]


class ForeignTrainer:
    """The trainer, and what its policy has really seen."""

    def __init__(
        self,
        directory: Path,
        kind: ForeignKind,
        turns: Sequence[ForeignTurn],
        *,
        tools: list[dict[str, Any]] | None,
        ends: tuple[str, str],
        stop: str | None,
        strict: bool,
    ) -> None:
        self.url = ""
        self.refused = 0
        """How many masks it refused."""
        self.log: defaultdict[str, list[LoggedPrompt]] = defaultdict(list)
        """By rollout: each turn."""
        self._kind, self._turns, self._strict = kind, turns, strict
        self._tools: list[Any] | None = tools
        self._ends, self._stop = ends, stop
        self._tokenizer, self._chat = whole(directory), chat(directory)

    def become(self, kind: ForeignKind, turns: Sequence[ForeignTurn]) -> None:
        """Goes on as another trainer, with another policy, at the same address."""
        self._kind, self._turns = kind, turns

    def answer(self, request: dict[str, Any], uid: str) -> tuple[int, dict[str, Any]]:
        """Status and body of the reply to a request."""
        log = self.log[uid]
        prompt = self._prompt(request["messages"], log)
        expected = len(prompt) - len(log[-1].prompt) - len(log[-1].sampled) if log else 0
        if self._strict and (expected < 0 or request["response_mask"] != ([0] * expected or None)):
            self.refused += 1
            return 422, {"error": {"expected": expected}}
        turn = self._turns[len(log)]
        sampled = self._encode(turn.text)
        log.append(LoggedPrompt(prompt, sampled))
        return 200, {
            "id": "c",
            "object": "chat.completion",
            "created": 1,
            "model": "m",
            "choices": [{"index": 0, "message": turn.message, "finish_reason": "stop"}],
            "token_ids": sampled,
            "logprobs": [-0.25] * len(sampled),
            "prompt_token_ids": prompt,
        }

    def _prompt(self, messages: list[Message], log: list[LoggedPrompt]) -> list[int]:
        if self._kind is ForeignKind.KEEPS_IDS and log:
            return [*log[-1].prompt, *log[-1].sampled, *self._encode(self._behind(messages, self._turns[len(log) - 1]))]
        if self._kind is not ForeignKind.RENDERS_TEXT:
            messages = [_parsed(message) for message in messages]
        return self._encode(self._render(messages))

    def _behind(self, messages: list[Message], turn: ForeignTurn) -> str:
        """What the template writes behind the policy's last turn, without what the policy sampled of its end."""
        last = max(i for i, message in enumerate(messages) if message["role"] == "assistant")
        calls = turn.message.get("tool_calls")
        marked: list[Message] = [{**messages[last], "content": _MARK}]
        if calls:
            call = {**calls[0], "function": {**calls[0]["function"], "arguments": {"a": _MARK}}}
            marked.insert(0, {**messages[last], "content": "", "tool_calls": [call]})
        for stand_in in marked:  # one that makes a call, where the template prints calls
            text = self._render([*(_parsed(m) for m in messages[:last]), _parsed(stand_in), *messages[last + 1 :]])
            if _MARK in text:
                break
        rest = text[text.rindex(_MARK) + len(_MARK) :]
        end = self._ends[bool(calls)]
        stop = rest.index(end)
        if turn.text.rstrip().endswith((end, self._stop or end)):
            rest, space = rest[stop + len(end) :], turn.text[len(turn.text.rstrip()) :]
            return rest.removeprefix(space)
        # The stop was withheld. A call ends with it; before an answer's may be more that was not sampled.
        return rest[stop:] if calls else rest

    def _render(self, messages: list[Message]) -> str:
        return str(
            self._chat.apply_chat_template(messages, tools=self._tools, add_generation_prompt=True, tokenize=False)
        )

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)


def _parsed(message: Message) -> Message:
    """As vLLM's chat utilities do it."""
    if not message.get("tool_calls"):
        return {**message, "content": message.get("content") or ""}
    calls = []
    for call in message["tool_calls"]:
        arguments = call["function"].get("arguments") or {}
        value = json.loads(arguments) if isinstance(arguments, str) else arguments
        calls.append({**call, "function": {**call["function"], "arguments": value}})
    return {**message, "content": message.get("content") or "", "tool_calls": calls}


@contextlib.contextmanager
def foreign_trainer(
    directory: Path,
    kind: ForeignKind,
    turns: Sequence[ForeignTurn],
    *,
    tools: list[dict[str, Any]] | None = None,
    ends: tuple[str, str] = ("<|im_end|>", "<|im_end|>"),
    stop: str | None = None,
    strict: bool = True,
) -> Iterator[ForeignTrainer]:
    """Serves such a trainer until the block ends.

    Args:
        directory: Of its tokenizer.
        kind: What it does with history.
        turns: What its policy samples, in each rollout.
        tools: What its prompts show.
        ends: The strings that end an answer and a turn with a call; known by hand.
        stop: Another one that its policy may end with.
        strict: Whether it refuses masks that are not what it counts.
    """
    trainer = ForeignTrainer(directory, kind, turns, tools=tools, ends=ends, stop=stop, strict=strict)

    class Handler(QuietHandler):
        """One connection."""

        def do_POST(self) -> None:
            """Answers a turn."""
            request = json.loads(self.rfile.read(int(self.headers["content-length"])))
            status, body = trainer.answer(request, self.headers["idempotency-key"].partition("/")[0])
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    with serving(Handler) as port:
        trainer.url = f"http://127.0.0.1:{port}"
        yield trainer
