"""Checks the endpoint's own prompts against full renders, because it shares its delta renderer with the pool.

Where that renderer is wrong, both are, and the echo agrees. So the endpoint also renders whole conversations, in
another way (`rendering/full_check.py`), and refuses a turn whose prompt is not what the template writes:

1. The first turn of each shape is checked. A shape is what a template can tell apart: roles, calls, tools, the number
   of rounds (one, two, more), and words that it looks for.
2. After that, every so many turns of the shape.
3. A turn that fails is refused with 422, and so is the next one of its shape, which is checked again.

A check renders and tokenises all of the conversation: 30 ms at 8,000 ids, 170 ms at 35,000. One turn in 64 is half a
millisecond, or three, per turn.
"""

import logging
from collections.abc import Sequence
from threading import Lock
from typing import Any

from cachetools import LRUCache

from rolloutpool_common.protocol.messages import text_of
from rolloutpool_common.rendering import ChatTokenizer
from rolloutpool_common.rendering.full_check import DeltaFault, RenderedDelta, check_delta
from rolloutpool_common.rendering.template import Message
from rolloutpool_trainer.endpoint.errors import EndpointError

_log = logging.getLogger(__name__)

SHAPES = 4096
"""Shapes that are remembered."""
ROUNDS = 3
"""Longer conversations are of one shape."""

_Shape = tuple[Any, ...]


class PromptFault(EndpointError):
    """The prompt of a turn is not what the chat template writes for its conversation."""

    def __init__(self, fault: DeltaFault, prompt: int) -> None:
        """The fault, and how many ids the prompt has."""
        position = prompt - fault.behind - 1
        super().__init__(
            422,
            "prompt_mismatch",
            f"the prompt that continues the sampled ids is not what the chat template writes: {fault.what} differs, "
            f"last at id {position} of {prompt}. Nothing was sampled. Report this template, and serve it with "
            "callback_app(keeps_ids=False) until it is mended",
            position=position,
            ours=fault.ours,
            rendered=fault.full,
        )


class PromptCheck:
    """Decides which turns are checked, and checks them. Thread-safe."""

    def __init__(self, tokenizer: ChatTokenizer, template_kwargs: dict[str, Any], every: int) -> None:
        """Checks the first turn of each shape and, unless `every` is 0, each `every`th one after that."""
        if every < 0:
            raise ValueError(f"check_every must be 0 or more, not {every}")
        self._tokenizer = tokenizer
        self._kwargs = template_kwargs
        self._every = every
        self._lock = Lock()
        self._unchecked: LRUCache[_Shape, int] = LRUCache(SHAPES)
        """Turns since the last one that was right."""

    def check(self, made: RenderedDelta, *, tools: list[dict[str, Any]] | None, prompt: int) -> None:
        """Checks a turn, if it is due; raises `PromptFault` where the prompt, of so many ids, is wrong."""
        shape = self._shape(made.messages, made.appended, tools)
        with self._lock:
            passed = self._unchecked.get(shape)
            if passed is not None and (not self._every or passed + 1 < self._every):
                self._unchecked[shape] = passed + 1
                return
        fault = check_delta(self._tokenizer, made, tools=tools, template_kwargs=self._kwargs)
        if fault is not None:
            error = PromptFault(fault, prompt)
            _log.error("%s: %s", self._tokenizer.name, error.message)
            raise error
        with self._lock:
            self._unchecked[shape] = 0

    def _shape(self, messages: Sequence[Message], appended: int, tools: list[dict[str, Any]] | None) -> _Shape:
        first = next((i for i, m in enumerate(messages) if m["role"] == "assistant"), len(messages))
        rounds = sum(message["role"] == "assistant" for message in messages)
        turn, new = messages[-appended - 1], messages[-appended:]
        words = self._tokenizer.template_words(tools)
        texts = [text_of(message) for message in (*messages[:first], turn, *new)]
        return (
            tuple(message["role"] for message in messages[:first]),
            min(rounds, ROUNDS),
            len(turn.get("tool_calls") or ()),
            not turn.get("content"),
            tuple(sorted(key for key, value in turn.items() if value is not None)),
            tuple((message["role"], *sorted(k for k, v in message.items() if v is not None)) for message in new),
            frozenset(word for word in words if any(word in text for text in texts)),
            tuple(tool.get("function", tool).get("name") for tool in tools or ()),
        )
