"""A budget of CPU time for each render, because a template is foreign code that may never end.

Jinja's sandbox allows a `range` of 100,000 numbers, but a loop in a loop multiplies that, and a macro may call itself
twice. Other templates count all earlier messages for each message, so their time grows with the square.

1. `guard` compiles a template with a check in the body and in the condition of each loop, and in each macro.
2. `RenderBudget.limit` gives a render its time. Only this thread's own work counts, so a busy machine or a large heap
   refuses nothing.
3. Every 16th check compares that work with the limit, and raises RenderTooCostly past it.
4. Between two checks the work is bounded by the size of the texts. So the operators and filters that take a number and
   make something of that size refuse large numbers: they would never come to the next check.
"""

import operator
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any

from jinja2 import Environment, nodes, pass_context
from jinja2 import Template as JinjaTemplate
from jinja2.runtime import Context
from jinja2.utils import generate_lorem_ipsum

from rolloutpool_common.rendering.errors import RenderTooCostly
from rolloutpool_common.rendering.thread_clock import work_seconds

INTERCEPTED = frozenset({"*", "**"})
"""Operators that the sandbox must not compute while it compiles: `10 ** (10 ** 9)` holds the process for hours."""
LIMITED = ("batch", "center", "indent", "slice")
"""Filters that take a number and make something of that size, also while a template is compiled."""
SECONDS = 1.0
"""CPU time that a render may take. A template that takes linear time renders 128,000 tokens in a tenth of that."""
SECONDS_PER_CHARACTER = 0.5e-6
"""And so much more for each character of the messages, which may have megabytes."""
_CHECK = "rolloutpool_check"
_EVERY = 16
_MOST_ITEMS = 10_000_000
"""The longest text or list that `*` may make."""
_MOST_BITS = 1_000_000
"""The largest number that `*` and `**` may make."""
_MOST_PARTS = 100_000
"""As many as one `range` may have."""


class _Running(threading.local):
    """The render of this thread."""

    checks = 0
    deadline = float("inf")
    characters: Callable[[], int] | None = None


_running = _Running()


@dataclass(frozen=True, slots=True)
class RenderBudget:
    """Holds what one render of a template may cost."""

    name: str
    """The tokenizer whose template it is."""
    seconds: float = SECONDS
    """CPU time of a render with short messages."""

    @contextmanager
    def limit(self, messages: Sequence[Mapping[str, Any]]) -> Iterator[None]:
        """Limits the render of these messages that this thread makes inside."""
        running = _running
        start = work_seconds()
        running.deadline = start + self.seconds
        # Asked only past the deadline, because it takes longer than a usual render.
        running.characters = lambda: sum(len(str(message)) for message in messages)
        try:
            yield
        except _OutOfTime:
            raise RenderTooCostly(
                f"The chat template of {self.name!r} took more than {work_seconds() - start:.1f} s of CPU time to "
                f"render {len(messages)} messages, and had not ended. The limit is "
                f"ROLLOUTPOOL_TEMPLATE_CPU_SECONDS={self.seconds:g}, and 0.5 s more for each million characters. Its "
                "cost grows too fast with the conversation: limit the turns, or use another template."
            ) from None
        finally:
            running.deadline, running.characters = float("inf"), None


class _OutOfTime(Exception):
    """The render must end; it never leaves this module."""


@pass_context
def _check(context: Context, value: Any) -> Any:
    """Counts, as a filter: Jinja calls filters directly, and everything else by way of the sandbox."""
    running = _running
    running.checks += 1
    if not running.checks % _EVERY and work_seconds() > running.deadline:
        if running.characters is None:
            raise _OutOfTime
        running.deadline += SECONDS_PER_CHARACTER * running.characters()
        running.characters = None
        if work_seconds() > running.deadline:
            raise _OutOfTime
    return value


def guard(environment: Environment, tree: nodes.Template) -> JinjaTemplate:
    """Compiles a template with checks of the budget in it, which changes its tree. What it renders stays the same."""
    environment.filters[_CHECK] = _check
    table = getattr(environment, "binop_table", {})
    table["*"], table["**"] = _times, _power
    environment.globals["lipsum"] = limited(generate_lorem_ipsum)
    found: list[nodes.For | nodes.Macro | nodes.CallBlock] = [
        *tree.find_all(nodes.For),
        *tree.find_all(nodes.Macro),
        *tree.find_all(nodes.CallBlock),
    ]
    for node in found:
        node.body.insert(0, nodes.ExprStmt(_checked(node.lineno), lineno=node.lineno))
        if isinstance(node, nodes.For) and node.test is not None:
            node.test = nodes.And(_checked(node.lineno), node.test, lineno=node.lineno)
    tree.set_environment(environment)
    return environment.from_string(tree)


def _checked(line: int) -> nodes.Filter:
    return nodes.Filter(nodes.Const(True, lineno=line), _CHECK, [], [], None, None, lineno=line)


def _times(left: Any, right: Any) -> Any:
    if isinstance(left, int) and isinstance(right, int):
        if left.bit_length() + right.bit_length() > _MOST_BITS:
            raise OverflowError("The product is too large.")
    else:
        for items, count in ((left, right), (right, left)):
            if isinstance(count, int) and isinstance(items, Sequence) and len(items) * count > _MOST_ITEMS:
                raise OverflowError(f"The product has more than {_MOST_ITEMS} items.")
    return operator.mul(left, right)


def _power(left: Any, right: Any) -> Any:
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() * right > _MOST_BITS:
        raise OverflowError("The power is too large.")
    return operator.pow(left, right)


def limited(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a function so that it refuses large numbers among its arguments."""

    @wraps(function)
    def few(*args: Any, **kwargs: Any) -> Any:
        if any(isinstance(value, int) and value > _MOST_PARTS for value in (*args, *kwargs.values())):
            raise OverflowError(f"More than {_MOST_PARTS} parts.")
        return function(*args, **kwargs)

    return few
