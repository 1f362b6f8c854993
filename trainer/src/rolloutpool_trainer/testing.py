"""A policy without a model: it plays calculator rollouts with real token ids, for tests, demos and load.

What it samples depends only on the rollout's id and the conversation, so it is the same in every process. It varies as
models do: in the text before calls, in how it writes JSON (spaced, compact, other order of keys), and in where it cuts
words into ids, so that a trainer that renders its turns again does not get the sampled ids back. Log-probabilities are
invented, but finite, negative, and different from token to token.

How it answers a question such as "What is (15 + 23) * 2?":

1. It finds the arithmetic expression, and plans one call per operation.
2. Each turn makes all calls whose operands are known: first `add(15, 23)`, then `multiply(38, 2)`.
3. When no call is left, it answers with the last result.
"""

import ast
import asyncio
import hashlib
import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rolloutpool_common.rendering import ChatTokenizer
from rolloutpool_trainer.endpoint.policy import GenerateParams, Generation

_TOOLS: dict[type[ast.operator], str] = {
    ast.Add: "add",
    ast.Sub: "subtract",
    ast.Mult: "multiply",
    ast.Div: "divide",
}
_EXPRESSION = re.compile(r"[\d(][\d\s.()+\-*/]*[\d)]")
_PLANS = (
    "",
    "I'll use the calculator tool.\n",
    "First I {names} the numbers.\n",
    "Let me calculate step by step: {names}.\n",
)
_ANSWERS = ("The result is {value}.", "So the final answer is {value}.", "{question} equals {value}.", "{value}")
_SHAPES = (
    "({a} + {b}) * {c}",
    "({a} + {b}) * ({c} - {d})",
    "{a} * {b}",
    "{a} - {b} / {c}",
    "({a} - {b}) / {c} + {d}",
    "{a} * {b} + {c} * {d}",
    "(({a} + {b}) * {c} - {d}) / {c}",
)
_ASKS = ("Calculate {}", "What is {}?", "Please work out {} for me.", "How much is {}?")


def calculator_prompts(n: int, seed: int = 0) -> list[str]:
    """Makes questions of one to three operations, some of which can be computed in parallel.

    Args:
        n: How many.
        seed: The same seed gives the same questions.
    """
    rng = random.Random(seed)
    questions = []
    for _ in range(n):
        a, b, c, d = (1 + int(rng.random() * 99) for _ in range(4))
        shape = _SHAPES[int(rng.random() * len(_SHAPES))]
        questions.append(_ASKS[int(rng.random() * len(_ASKS))].format(shape.format(a=a, b=b, c=c, d=d)))
    return questions


class ScriptedPolicy:
    """A `generate` for `callback_app` that solves the question in the conversation with the calculator's tools."""

    def __init__(self, tokenizer: ChatTokenizer, *, latency: float = 0.0, turns: int | None = None) -> None:
        """Makes a policy.

        Args:
            tokenizer: Encodes what it says; it must have a close token.
            latency: Seconds per turn, as a model would take.
            turns: Sample exactly so many turns per question. The policy repeats the last result until then, or answers
                before it is done.
        """
        self._tokenizer, self._latency, self._turns = tokenizer, latency, turns

    async def __call__(self, prompt_ids: list[int], params: GenerateParams) -> Generation:
        """Samples the next turn of the conversation in `params.messages`, of at most `params.max_tokens`."""
        if self._latency:
            await asyncio.sleep(self._latency)
        # Not `hash()`, which differs from process to process.
        seed = hashlib.blake2b(f"{params.rollout_id}/{params.turn}".encode(), digest_size=8).digest()
        rng = random.Random(int.from_bytes(seed, "big"))
        ids = self._encode(_next_text(params.messages, self._turns, rng), rng)
        if self._tokenizer.close_id is not None:
            ids.append(self._tokenizer.close_id)
        # The close token counts too; a turn that is cut before it ends by its length.
        kept = ids[: params.max_tokens]
        return Generation(
            token_ids=kept,
            logprobs=[-0.001 - 3 * rng.random() for _ in kept],
            finish_reason="stop" if len(kept) == len(ids) else "length",
        )

    def _encode(self, text: str, rng: random.Random) -> list[int]:
        """Encodes a text; one time in four with a word cut in two, because models do not sample canonical ids only."""
        if rng.random() >= 0.25:
            return self._tokenizer.encode(text)
        words = [match.start() for match in re.finditer(r"[a-z]{3,}", text)]
        if not words:
            return self._tokenizer.encode(text)
        cut = words[int(rng.random() * len(words))] + 1
        return [*self._tokenizer.encode(text[:cut]), *self._tokenizer.encode(text[cut:])]


@dataclass(frozen=True, slots=True)
class _Result:
    """Stands for the result of a call in an earlier turn."""

    call: int


_Operand = int | float | _Result


@dataclass(frozen=True, slots=True)
class _ScriptedCall:
    name: str
    a: _Operand
    b: _Operand
    depth: int
    """How many turns of calls come before this one."""


def _next_text(messages: Sequence[dict[str, Any]], turns: int | None, rng: random.Random) -> str:
    # Only what follows the last question counts: a conversation may hold several.
    start = max((i for i, message in enumerate(messages) if message["role"] == "user"), default=-1)
    question = messages[start]["content"] if start >= 0 else None
    since = messages[start + 1 :]
    done = sum(message["role"] == "assistant" for message in since)
    expression = _expression(question) if isinstance(question, str) else None
    if expression is None:
        return "I can only calculate; please ask for a sum."
    calls = _plan(expression)
    # Results come in call order, and calls are made in order of depth.
    results = [str(message["content"]) for message in since if message["role"] == "tool"]
    failed = next((result for result in results if _number(result) is None), None)
    if failed is not None:
        return f"The calculator failed: {failed}"
    wave = [call for call in calls if call.depth == done]
    last = turns is not None and done + 1 >= turns
    if wave and not last:
        return _call_text(wave, results, rng)
    if turns is not None and not last:
        return _call_text([_ScriptedCall("add", _Result(len(results) - 1), 0, done)], results, rng)
    value = results[-1] if results else "not known yet"
    text = _ANSWERS[int(rng.random() * len(_ANSWERS))]
    return text.format(value=value, question=ast.unparse(expression))


def _call_text(wave: Sequence[_ScriptedCall], results: Sequence[str], rng: random.Random) -> str:
    names = " and ".join({call.name: None for call in wave})
    plan = _PLANS[int(rng.random() * len(_PLANS))].format(names=names)
    blocks = []
    for call in wave:
        arguments = {"a": _value(call.a, results), "b": _value(call.b, results)}
        style = rng.random()
        if style < 0.5:
            text = json.dumps({"name": call.name, "arguments": arguments})
        elif style < 0.8:
            text = json.dumps({"name": call.name, "arguments": arguments}, separators=(",", ":"))
        else:
            text = json.dumps({"arguments": arguments, "name": call.name})
        blocks.append(f"<tool_call>\n{text}\n</tool_call>")
    return plan + "\n".join(blocks)


def _value(operand: _Operand, results: Sequence[str]) -> int | float:
    if not isinstance(operand, _Result):
        return operand
    number = _number(results[operand.call]) if 0 <= operand.call < len(results) else None
    return 0 if number is None else number


def _number(text: str) -> int | float | None:
    try:
        return int(text)
    except ValueError:
        try:
            return float(text)
        except ValueError:
            return None


def _expression(question: str) -> ast.expr | None:
    """Finds the first arithmetic expression with at least one operation."""
    for match in _EXPRESSION.finditer(question):
        try:
            tree = ast.parse(match[0].strip(), mode="eval").body
        except SyntaxError:
            continue
        if isinstance(tree, ast.BinOp) and all(
            type(node.op) in _TOOLS for node in ast.walk(tree) if isinstance(node, ast.BinOp)
        ):
            return tree
    return None


def _plan(tree: ast.expr) -> list[_ScriptedCall]:
    """Lists the calls that compute the tree in the order in which they are made: by depth, then left to right."""
    found: list[tuple[ast.expr, ast.expr, ast.expr, str, int]] = []
    depths: dict[int, int] = {}

    def visit(node: ast.expr) -> int:
        if not isinstance(node, ast.BinOp):
            return 0
        depth = max(visit(node.left), visit(node.right))
        depths[id(node)] = depth
        found.append((node, node.left, node.right, _TOOLS[type(node.op)], depth))
        return depth + 1

    visit(tree)
    # The sort is stable, so calls of one depth stay in the order from left to right.
    found.sort(key=lambda call: call[4])
    place = {id(node): index for index, (node, *_) in enumerate(found)}

    def operand(node: ast.expr) -> _Operand:
        if id(node) in place:
            return _Result(place[id(node)])
        value: int | float = ast.literal_eval(node)
        return value

    return [_ScriptedCall(name, operand(left), operand(right), depth) for _, left, right, name, depth in found]
