"""Evaluates a template's expressions with values that are partly unknown."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from jinja2 import Environment, Undefined, nodes

from rolloutpool_common.rendering.proof import access
from rolloutpool_common.rendering.proof.claims import Reason, Source
from rolloutpool_common.rendering.proof.comparisons import Assumptions, Comparisons
from rolloutpool_common.rendering.proof.operations import Operations
from rolloutpool_common.rendering.proof.state import PathState
from rolloutpool_common.rendering.proof.values import (
    LEAST,
    NOTHING,
    Function,
    Kind,
    Loop,
    Macro,
    Messages,
    Namespace,
    NotUnderstood,
    Position,
    Raised,
    Stream,
    Unknown,
    bounded,
    derive,
    is_plain,
    joined,
    mix,
    same,
    sources_of,
    unknown,
)
from rolloutpool_common.rendering.thread_clock import work_seconds

STEPS = 12_000
"""Nodes that one run may come to: a tenth of a second. Of 290 templates, half of Gemma 4's come to more."""
_LINE = 110
_RANGE = 10_000
_RESERVED = frozenset({"self", "super", "caller", "varargs", "kwargs"})
"""Names that Jinja itself may give a value."""


class Expressions(ABC):
    """Evaluates expressions of one template. It counts what it does, and gives up beyond a bound."""

    def __init__(
        self, environment: Environment, source: str, messages: Messages, guard: Assumptions, deadline: float
    ) -> None:
        """It gives up when this thread's CPU time is past the deadline."""
        self._all = messages
        self._environment = environment
        self._lines = source.splitlines()
        self._deadline = deadline
        self._steps = 0
        self._line = 1
        self._comparisons = Comparisons(environment, guard)
        self._operations = Operations(environment, guard, self._comparisons)

    @abstractmethod
    def _call_macro(self, macro: Macro, arguments: list[Any], named: dict[str, Any], state: PathState) -> Any:
        """The text that a macro writes."""

    def _step(self, node: nodes.Node) -> None:
        self._line = node.lineno or self._line
        self._steps += 1
        if self._steps > STEPS or (not self._steps % 64 and work_seconds() > self._deadline):
            raise NotUnderstood("more than may be computed")

    def reason(self, what: str, sources: frozenset[Source] = NOTHING, line: int | None = None) -> Reason:
        line = line or self._line
        text = self._lines[line - 1].strip()[:_LINE] if 0 < line <= len(self._lines) else ""
        return Reason(line, f"{what}: {text}", sources)

    def _evaluate(self, node: nodes.Node, state: PathState) -> Any:
        value = self._raw(node, state)
        if isinstance(value, Stream) and value.lazy:
            raise NotUnderstood("a generator that is kept")
        return value

    def _raw(self, node: nodes.Node, state: PathState) -> Any:
        """As `_evaluate`; what is a generator must be used at once."""
        self._step(node)
        visit = getattr(self, f"visit_{type(node).__name__}", None)
        if visit is None or not isinstance(node, nodes.Expr):
            raise NotUnderstood(type(node).__name__)
        return visit(node, state)

    def _values(self, found: Sequence[nodes.Expr], state: PathState) -> list[Any]:
        """Values that are put into a list, a table or a call."""
        values = [self._evaluate(node, state) for node in found]
        if any(isinstance(value, Namespace | Macro | Loop | Function) for value in values):
            raise NotUnderstood("a namespace or a function that is kept in a value")
        return bounded(values)  # type: ignore[no-any-return]

    def _perhaps(self, state: PathState, *found: nodes.Expr) -> list[Any]:
        """Values of expressions that some renders evaluate and some don't; without those that raise an error."""
        values = []
        for node in found:
            aside = PathState(
                state.scopes, {place: dict(v) for place, v in state.heap.items()}, None, state.cause, True
            )
            try:
                values.append(self._evaluate(node, aside))
            except Raised:
                continue
            if any(not same(values, aside.heap[place]) for place, values in state.heap.items()):
                raise NotUnderstood("an expression that changes a namespace, or not")
        return values

    def visit_Const(self, node: nodes.Const, state: PathState) -> Any:
        return node.value

    def visit_TemplateData(self, node: nodes.TemplateData, state: PathState) -> Any:
        return node.data

    def visit_Name(self, node: nodes.Name, state: PathState) -> Any:
        if node.name in _RESERVED:
            raise NotUnderstood(f"the variable {node.name}")
        if not state.has(node.name) and node.name in self._environment.globals:
            return Function(node.name)
        return state.find(node.name)

    def visit_List(self, node: nodes.List, state: PathState) -> Any:
        return self._values(node.items, state)

    def visit_Tuple(self, node: nodes.Tuple, state: PathState) -> Any:
        return tuple(self._values(node.items, state))

    def visit_Dict(self, node: nodes.Dict, state: PathState) -> Any:
        keys = self._values([pair.key for pair in node.items], state)
        values = self._values([pair.value for pair in node.items], state)
        if not all(type(key) is str for key in keys):
            return unknown(keys, values, kind=Kind.MAPPING)
        return dict(zip(keys, values, strict=True))

    def visit_Getattr(self, node: nodes.Getattr, state: PathState) -> Any:
        owner = self._evaluate(node.node, state)
        if isinstance(owner, Namespace):
            return state.heap[owner.place].get(node.attr, Undefined(name=node.attr))
        return access.attribute(owner, node.attr)

    def visit_Getitem(self, node: nodes.Getitem, state: PathState) -> Any:
        owner = self._evaluate(node.node, state)
        if isinstance(node.arg, nodes.Slice):
            bounds = (node.arg.start, node.arg.stop, node.arg.step)
            return access.section(owner, *(None if b is None else self._evaluate(b, state) for b in bounds))
        return access.item(owner, self._evaluate(node.arg, state))

    def visit_Not(self, node: nodes.Not, state: PathState) -> Any:
        value = self._raw(node.node, state)
        truth = self._comparisons.truth(value)
        return derive(Kind.BOOL, "not", value) if truth is None else not truth

    def visit_Or(self, node: nodes.And | nodes.Or, state: PathState) -> Any:
        left = self._raw(node.left, state)
        truth = self._comparisons.truth(left)
        goes_on = isinstance(node, nodes.And)
        if truth is not None:
            return self._raw(node.right, state) if truth is goes_on else left
        rest = self._perhaps(state, node.right)
        if not rest:
            return unknown(left)
        decided = self._comparisons.truth(rest[0])
        # Where the other side has the value that decides, the whole has it too.
        return Unknown(
            sources_of(left, *rest),
            truth=decided if decided is not goes_on else None,
            key=derive(None, type(node).__name__, left, *rest).key,
        )

    visit_And = visit_Or

    def visit_CondExpr(self, node: nodes.CondExpr, state: PathState) -> Any:
        condition = self._raw(node.test, state)
        truth = self._comparisons.truth(condition)
        if truth is not None:
            chosen = node.expr1 if truth else node.expr2
            return Undefined() if chosen is None else self._evaluate(chosen, state)
        both = self._perhaps(state, node.expr1, *([node.expr2] if node.expr2 else []))
        if node.expr2 is None:
            both.append(Undefined())
        if not both:
            raise Raised
        return both[0] if len(both) == 1 else mix(both[0], both[1], sources_of(condition))

    def visit_Compare(self, node: nodes.Compare, state: PathState) -> Any:
        left, result = self._evaluate(node.expr, state), None
        for operand in node.ops:
            right = self._evaluate(operand.expr, state)
            found = self._comparisons.compare(operand.op, left, right)
            left = right
            if found is False:
                return False
            if found is not True:
                result = found if result is None else unknown(result, found, kind=Kind.BOOL)
        return True if result is None else result

    def visit_Concat(self, node: nodes.Concat, state: PathState) -> Any:
        return joined(self._evaluate(part, state) for part in node.nodes)

    def visit_Add(self, node: nodes.BinExpr, state: PathState) -> Any:
        left, right = self._evaluate(node.left, state), self._evaluate(node.right, state)
        return self._operations.binary(type(node).__name__, left, right)

    visit_Sub = visit_Mul = visit_Div = visit_FloorDiv = visit_Mod = visit_Pow = visit_Add

    def visit_Neg(self, node: nodes.UnaryExpr, state: PathState) -> Any:
        value = self._evaluate(node.node, state)
        if type(value) not in (int, float):
            return derive(None, type(node).__name__, value)
        return -value if isinstance(node, nodes.Neg) else value

    visit_Pos = visit_Neg

    def visit_Filter(self, node: nodes.Filter, state: PathState) -> Any:
        if node.node is None:
            raise NotUnderstood("a filter block")
        return self._apply(node, self._raw(node.node, state), state)

    def _apply(self, node: nodes.Filter, value: Any, state: PathState) -> Any:
        if node.dyn_args or node.dyn_kwargs:
            raise NotUnderstood("arguments by *")
        if isinstance(value, Namespace | Macro | Loop | Function):
            raise NotUnderstood("a filter of a namespace or a function")
        named = {str(k.key): self._evaluate(k.value, state) for k in node.kwargs}
        return self._operations.filter(node.name, value, self._values(node.args, state), named)

    def visit_Test(self, node: nodes.Test, state: PathState) -> Any:
        if node.kwargs or node.dyn_args or node.dyn_kwargs:
            raise NotUnderstood("named arguments of a test")
        return self._comparisons.test(node.name, self._raw(node.node, state), self._values(node.args, state))

    def visit_Call(self, node: nodes.Call, state: PathState) -> Any:
        if node.dyn_args or node.dyn_kwargs:
            raise NotUnderstood("arguments by *")
        called = node.node
        owner = self._evaluate(called.node, state) if isinstance(called, nodes.Getattr) else None
        if isinstance(called, nodes.Getattr) and not isinstance(owner, Namespace | Loop):
            arguments = self._values(node.args, state)
            named = {k.key: self._evaluate(k.value, state) for k in node.kwargs}
            return self._operations.method(owner, called.attr, arguments, named)
        function = self._evaluate(called, state)
        if isinstance(function, Undefined):
            raise Raised
        arguments = [self._evaluate(argument, state) for argument in node.args]
        named = {k.key: self._evaluate(k.value, state) for k in node.kwargs}
        if any(isinstance(value, Macro | Function | Stream) for value in (*arguments, *named.values())):
            raise NotUnderstood("a function that is given to another")
        if isinstance(function, Macro):
            return self._call_macro(function, arguments, named, state)
        if not isinstance(function, Function):
            raise NotUnderstood("a call of a value")
        return self._call_global(node, function.name, arguments, named, state)

    def _call_global(
        self, node: nodes.Call, name: str, arguments: list[Any], named: dict[str, Any], state: PathState
    ) -> Any:
        if name == "raise_exception":
            raise Raised
        if name == "namespace" and len(arguments) <= 1:
            return self._namespace(node, arguments, named, state)
        if any(isinstance(value, Namespace | Loop) for value in (*arguments, *named.values())):
            raise NotUnderstood("a namespace that is given to a function")
        if name == "strftime_now":
            return unknown(*arguments, kind=Kind.TEXT, more={Source.CLOCK})
        if name == "range" and 1 <= len(arguments) <= 3 and not named:
            return self._range(arguments)
        raise NotUnderstood(f"the function {name}")

    def _namespace(self, node: nodes.Call, arguments: list[Any], named: dict[str, Any], state: PathState) -> Namespace:
        given = {**(arguments[0] if arguments else {}), **named} if all(type(a) is dict for a in arguments) else None
        if given is None or any(key.startswith("_") for key in given):
            raise NotUnderstood("a namespace that is made of a value")
        if any(isinstance(value, Namespace | Loop) for value in given.values()):
            raise NotUnderstood("a namespace in a namespace")
        # Only variables hold namespaces, so an earlier one of this place is gone by now.
        place = (id(node), self._depth())
        state.heap[place] = given
        return Namespace(place)

    def _depth(self) -> int:
        """How many macros are being called."""
        return 0

    def _range(self, arguments: list[Any]) -> Any:
        if is_plain(arguments):
            if not all(type(value) is int for value in arguments) or arguments[2:] == [0]:
                raise Raised
            numbers = range(*arguments)
            if len(numbers) > _RANGE:
                raise NotUnderstood("a long range")
            return Stream(tuple(numbers), lazy=False)
        start, stop, step = (0, arguments[0], 1) if len(arguments) == 1 else (*arguments, 1)[:3]
        if step == 1 and isinstance(start, Position) and isinstance(stop, Position):
            return Stream(tuple(map(Position, range(start.offset, stop.offset))), lazy=False)
        size = len(self._all.tail)
        if type(start) is int and 0 <= start <= LEAST and step == 1 and stop == Position(size):
            return Stream(Messages(start, tuple(map(Position, range(size))), self._all.first, indices=True), lazy=False)
        return Stream(unknown(arguments, more={Source.POSITION}), lazy=False)
