"""Random conversations of a shape that a proof is about, whose words are mostly what the template itself looks for."""

import json
import re
from collections.abc import Iterator
from functools import lru_cache
from random import Random
from typing import Any

from rolloutpool_common.rendering.proof.claims import Source, TurnShape
from rolloutpool_common.rendering.sentinel import SENTINEL

Message = dict[str, Any]
_WORDS = (
    "", " ", "\n", " 38", "38 ", "ok", "fine\n", "é", "漢字", "<think>", "</think>", "<think>\nhm\n</think>\n\nyes",
    "/think", "/no_think", "a</think>b", "<|im_end|>", "{}", '{"a": 1}', "[]", "user", "assistant", "tool", "system",
    "%s", "0", "none", "true", "<tool_response>", "</tool_response>", "<tool_call>", "call_1", "abcdefghi", "add",
)  # fmt: skip
ODD_ROLES = ("developer", "function", "ipython", "tool_response", "environment", "critic", "context", "observation")


@lru_cache(maxsize=512)
def _literals(source: str) -> tuple[str, ...]:
    """Texts that stand in quotes in a template, and parts of them."""
    found = [a or b for a, b in re.findall(r"'((?:[^'\\\n]|\\.)*)'|\"((?:[^\"\\\n]|\\.)*)\"", source)]
    texts = [text.replace("\\n", "\n").replace("\\'", "'") for text in found if text and len(text) < 60]
    return tuple(dict.fromkeys([*texts, *(text.strip() for text in texts)])) or ("x",)


class Writer:
    """Writes random conversations for one template."""

    def __init__(self, source: str, random: Random) -> None:
        """`source` is the template's."""
        self.random = random
        self._literals = _literals(source)

    def text(self) -> str:
        random = self.random
        parts = [
            random.choice(self._literals) if random.random() < 0.5 else random.choice(_WORDS)
            for _ in range(random.choice((1, 1, 1, 2, 3)))
        ]
        return random.choice(("", "", " ", "x")).join(parts)

    def word(self) -> str:
        """A text as policies and tools write them most of the time."""
        random = self.random
        return self.text() if random.random() < 0.4 else f"{random.choice('abcde')}{random.randrange(999)}"

    def calls(self, count: int, as_text: bool) -> list[Message]:
        made = []
        for _ in range(count):
            arguments: Any = {self.random.choice("abc"): self.word() for _ in range(self.random.randrange(3))}
            function = {"name": self.word() or "f", "arguments": json.dumps(arguments) if as_text else arguments}
            made.append({"id": self.identity(), "type": "function", "function": function})
        return made

    def identity(self) -> str:
        """The id of a call."""
        return self.random.choice(
            ("call00000", "call00001", "call00002", f"c{self.random.randrange(99):08}", self.word())
        )

    def tools(self) -> list[Message]:
        schema = {"type": "object", "properties": {"a": {"type": "string", "description": self.word()}}}
        names = [self.word() or "f" for _ in range(self.random.choice((1, 1, 2)))]
        return [
            {"type": "function", "function": {"name": name, "description": self.word(), "parameters": schema}}
            for name in names
        ]

    def round(self, as_text: bool, *, regular: bool) -> Iterator[Message]:
        """A user's message, and what a policy does about it."""
        random = self.random
        yield {"role": "user", "content": self.text()}
        while random.random() < 0.4:
            made = self.calls(random.choice((1, 1, 2)), as_text)
            yield self.thoughts({"role": "assistant", "content": random.choice(("", self.text())), "tool_calls": made})
            for call in made:
                result = {"role": "tool", "content": self.text(), "tool_call_id": call["id"]}
                yield result | ({"name": call["function"]["name"]} if random.random() < 0.7 else {})
        yield self.thoughts({"role": "assistant", "content": self.text()})
        if not regular and random.random() < 0.4:
            role = random.choice(("system", "system", "user", "assistant", "tool", *ODD_ROLES))
            yield {"role": role, "content": self.text()}

    def thoughts(self, message: Message) -> Message:
        return {**message, "reasoning_content": self.text()} if self.random.random() < 0.25 else message

    def history(self, shape: TurnShape, system: Message | None) -> list[Message]:
        """Messages before the turn."""
        random = self.random
        regular = random.random() < 0.7
        found = [] if system is None else [system]
        for _ in range(random.choice((0, 0, 1, 1, 2, 3, 6))):
            found += self.round(shape.as_text, regular=regular)
        found.append({"role": "user", "content": self.text()})
        if shape.calls and random.random() < 0.4:
            made = self.calls(1, shape.as_text)
            found.append({"role": "assistant", "content": "", "tool_calls": made})
            found.append({"role": "tool", "content": self.text(), "tool_call_id": made[0]["id"], "name": "f"})
        if not regular and random.random() < 0.3:
            # Behind a system message stands one more, or proofs are not about it.
            del found[random.randrange(1 if system is None else 2, len(found) + 1) :]
        if found[:1] and system is None and found[0]["role"] in ("system", "developer"):
            found[0] = {**found[0], "role": "user"}
        return found

    def turn(self, shape: TurnShape) -> Message:
        """The turn with its sentinel."""
        if shape.asked:
            return {"role": "user", "content": f"x{SENTINEL}"}
        marked = shape.says or shape.spoken or not shape.calls
        content = ((self.text() or "x") if shape.says else "") + (SENTINEL if marked else "")
        turn: Message = {"role": "assistant", "content": content}
        turn |= {key: self.text() for key in shape.beside}
        if shape.calls:
            turn["tool_calls"] = self.calls(shape.calls, shape.as_text)
            for call in turn["tool_calls"]:
                arguments = {SENTINEL: SENTINEL}
                call["function"]["arguments"] = json.dumps(arguments) if shape.as_text else arguments
        return turn

    def conversation(self, shape: TurnShape) -> dict[Source, Any]:
        """All but the history, by what a proof calls it."""
        turn = self.turn(shape)
        return {
            Source.SYSTEM: {"role": "system", "content": self.text()} if shape.system else None,
            Source.TURN: turn,
            Source.NEW: self.new(shape, turn.get("tool_calls", [])),
            Source.TOOLS: self.tools() if shape.tools else None,
        }

    def new(self, shape: TurnShape, calls: list[Message]) -> list[Message]:
        found = []
        for i, (role, keys, count, parsed, bare) in enumerate(shape.new):
            message: Message = {"role": role, **{key: self.word() for key in keys if key != "role"}, **dict(bare)}
            if count:
                calls = message["tool_calls"] = self.calls(count, as_text=not parsed)
            call = calls[i] if i < len(calls) and not count else None
            if "tool_call_id" in message:
                message["tool_call_id"] = call["id"] if call and self.random.random() < 0.8 else self.identity()
            if "name" in message and call and self.random.random() < 0.8:
                message["name"] = call["function"]["name"]
            items = list(message.items())
            self.random.shuffle(items)
            found.append(dict(items))
        return found
