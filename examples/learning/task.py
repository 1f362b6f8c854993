"""The task: a sum of one digit each that takes two calls of the calculator, such as `(3 + 5) * 7`.

Demonstrations are of mixed quality, as what people write is. About half of them have a flaw: the wrong tool, an answer
after the first call, or one without any. What is learned from them is therefore right about half of the time, and the
rest is left to reinforcement. They also write JSON in two ways, with spaces and without, and the tokenizer learns the
words of both. Only the one with spaces is trained: `MaskGenerator` parses arguments before it renders, as servers do.
"""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

FLAWED = 0.5
"""The share of demonstrations with a flaw."""
COMPACT = 0.5
"""The share of calls whose arguments are written without spaces."""
_SIGNS = {"+": "add", "-": "subtract", "*": "multiply"}
# Where the first operation stands, and its signs. Each digit and each sign is one token.
_SHAPES = (("({a} {first} {b}) {second} {c}", "+-", "*"), ("{a} {first} {b} {second} {c}", "*", "+-"))
_Message = dict[str, Any]
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Question:
    """A sum of two operations; the second one takes the first one's result."""

    text: str
    first: str
    """The tool of the first operation."""
    second: str
    numbers: tuple[int, int, int]

    @property
    def between(self) -> int:
        """The result of the first operation."""
        return _applied(self.first, self.numbers[0], self.numbers[1])

    @property
    def answer(self) -> int:
        """The result."""
        return _applied(self.second, self.between, self.numbers[2])


def questions(rng: random.Random, n: int) -> list[Question]:
    """Makes so many questions; the same ones for the same state of `rng`."""
    found = []
    for _ in range(n):
        shape, firsts, seconds = _pick(rng, _SHAPES)
        first, second = _pick(rng, firsts), _pick(rng, seconds)
        a, b, c = (1 + int(rng.random() * 9) for _ in range(3))
        text = shape.format(a=a, b=b, c=c, first=first, second=second)
        found.append(Question(text, _SIGNS[first], _SIGNS[second], (a, b, c)))
    return found


def demonstration(question: Question, rng: random.Random) -> list[_Message]:
    """Writes how somebody answers a question, with a flaw in about half of the cases."""
    flaw = _pick(rng, ("first tool", "second tool", "one call", "no call")) if rng.random() < FLAWED else ""
    a, b, c = question.numbers
    messages: list[_Message] = [{"role": "user", "content": question.text}]
    if flaw == "no call":
        return [*messages, {"role": "assistant", "content": str(1 + int(rng.random() * 99))}]
    tool = _other(question.first, rng) if flaw == "first tool" else question.first
    between = _applied(tool, a, b)
    messages += _call(tool, a, b, between, rng)
    if flaw == "one call":
        return [*messages, {"role": "assistant", "content": str(between)}]
    tool = _other(question.second, rng) if flaw == "second tool" else question.second
    answer = _applied(tool, between, c)
    return [*messages, *_call(tool, between, c, answer, rng), {"role": "assistant", "content": str(answer)}]


def reward(question: Question, said: str | None) -> float:
    """Is 1.0 if the policy's last message is the result and nothing else, and 0.0 otherwise."""
    return float((said or "").strip() == str(question.answer))


def _call(tool: str, a: int, b: int, result: int, rng: random.Random) -> list[_Message]:
    separators = (",", ":") if rng.random() < COMPACT else None
    arguments = json.dumps({"a": a, "b": b}, separators=separators)
    call = {"id": "callabcde", "type": "function", "function": {"name": tool, "arguments": arguments}}
    return [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "name": tool, "tool_call_id": "callabcde", "content": str(result)},
    ]


def _applied(tool: str, a: int, b: int) -> int:
    return {"add": a + b, "subtract": a - b, "multiply": a * b}[tool]


def _other(tool: str, rng: random.Random) -> str:
    return _pick(rng, [name for name in _SIGNS.values() if name != tool])


def _pick(rng: random.Random, items: Sequence[_T]) -> _T:
    # `Random.choice` is not promised to give the same on another Python.
    return items[int(rng.random() * len(items))]
