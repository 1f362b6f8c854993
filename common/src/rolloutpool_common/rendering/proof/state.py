"""Says what a template has set and written up to a point, and how two paths that meet there become one.

Of some calls only what the macro may read is asked (`reads`): that is found in its body, without running it.
"""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace
from os.path import commonprefix
from typing import Any

from jinja2 import Undefined, nodes

from rolloutpool_common.rendering.proof.claims import JsonWord, Reason, Source, Word
from rolloutpool_common.rendering.proof.operations import Operations
from rolloutpool_common.rendering.proof.values import (
    NOTHING,
    Function,
    Kind,
    Loop,
    Macro,
    Messages,
    Namespace,
    Safe,
    Text,
    Unknown,
    from_sentinel,
    holds_sentinel,
    joined,
    mix,
    same,
    sources_of,
)
from rolloutpool_common.rendering.sentinel import SENTINEL

Written = list[str | Unknown]


@dataclass(slots=True)
class PathState:
    """One or many paths through the template."""

    scopes: list[dict[str, Any]]
    """Variables, from the outermost scope to the innermost."""
    heap: dict[Hashable, dict[str, Any]]
    """Values of namespaces."""
    out: Written | None
    """What is written: in the template's own text only what follows the last sentinel. None before the first one."""
    cause: frozenset[Source] = NOTHING
    """What decides that a loop is still running here."""
    inner: bool = False
    """It writes a text of its own: of a macro or a block."""

    def copy(self) -> "PathState":
        """A state that can go another way."""
        scopes = [dict(scope) for scope in self.scopes]
        heap = {place: dict(values) for place, values in self.heap.items()}
        return PathState(scopes, heap, None if self.out is None else list(self.out), self.cause, self.inner)

    def find(self, name: str) -> Any:
        """A variable's value."""
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        return Undefined(name=name)

    def has(self, name: str) -> bool:
        """Whether there is such a variable."""
        return any(name in scope for scope in self.scopes)

    def write(self, value: Any, reason: Reason) -> None:
        """Prints a value."""
        text = joined([value])
        for piece in text.parts if isinstance(text, Text) else (text,):
            part = piece
            if isinstance(piece, Unknown) and piece.reason is None and not isinstance(piece.key, Word | JsonWord):
                part = replace(piece, reason=replace(reason, sources=piece.sources))
            if not self.inner and holds_sentinel(part):
                self.out = _flat([part.rpartition(SENTINEL)[2]] if isinstance(part, str) else [])
            elif self.out is not None:
                self.out = _flat([*self.out, part])
            elif isinstance(part, Unknown) and Source.TURN in part.sources:
                self.out = [part]


def _flat(parts: Written) -> Written:
    flat: Written = []
    for part in parts:
        if isinstance(part, str) and flat and isinstance(flat[-1], str):
            flat[-1] += part
        elif part != "":
            flat.append(part)
    return flat


def merge(
    a: PathState | None,
    b: PathState | None,
    sources: frozenset[Source],
    reason: Reason,
    *,
    before: PathState | None = None,
) -> PathState | None:
    """One state of two paths, where values of these sources decide which of them is gone."""
    if a is None or b is None:
        return a or b
    sources |= a.cause | b.cause
    out = _mixed(a.out, b.out, sources, reason)
    if before is not None and out is not None and not _alike(a.out, out):
        written = sources_of(a.out or [], b.out or [], out) | sources
        out = [*(before.out or []), Unknown(written, Kind.TEXT, reason=replace(reason, sources=written))]
    scopes = []
    for depth, (x, y) in enumerate(zip(a.scopes, b.scopes, strict=True)):
        scope = x.copy()
        for name in x.keys() | y.keys() if x.keys() != y.keys() else x:
            if x.get(name, _NONE) is not y.get(name, _ABSENT):
                scope[name] = mix(_seen(a, depth, name), _seen(b, depth, name), sources)
        scopes.append(scope)
    heap = {}
    for place in {**a.heap, **b.heap}:
        x, y = a.heap.get(place, {}), b.heap.get(place, {})
        heap[place] = {key: mix(x.get(key, _NONE), y.get(key, _NONE), sources) for key in {**x, **y}}
    return PathState(scopes, heap, out, a.cause | b.cause, a.inner)


_NONE, _ABSENT = Undefined(), Undefined()


def _seen(state: PathState, depth: int, name: str) -> Any:
    """A variable as a scope sees it, which may not have one of its own."""
    for scope in reversed(state.scopes[: depth + 1]):
        if name in scope:
            return scope[name]
    return Undefined(name=name)


def _alike(a: Written | None, b: Written) -> bool:
    return a is not None and len(a) == len(b) and all(map(same, a, b))


def _mixed(a: Written | None, b: Written | None, sources: frozenset[Source], reason: Reason) -> Written | None:
    """One text of two: what lies between their common beginning and end is not known."""
    if a is None and b is None:
        return None
    if a is None or b is None:
        sources |= sources_of(a or [], b or []) | {Source.TURN}
        return [Unknown(sources, Kind.TEXT, reason=replace(reason, sources=sources))]
    a, b = list(a), list(b)
    head: Written = []
    tail: Written = []
    if any(map(holds_sentinel, a)) and any(map(holds_sentinel, b)):
        a, b = from_sentinel(a), from_sentinel(b)
        head = [mix(a.pop(0), b.pop(0), sources)]
    while a and b and same(a[0], b[0]):
        head.append(a.pop(0))
        b.pop(0)
    head += _common(a, b, 0)
    while a and b and same(a[-1], b[-1]):
        tail.insert(0, a.pop())
        b.pop()
    tail = _common(a, b, -1) + tail
    if not a and not b:
        return _flat([*head, *tail])
    sources |= sources_of(a, b)
    first = next((part.reason for part in (*a, *b) if isinstance(part, Unknown) and part.reason), None)
    why = replace(reason, sources=sources) if not sources <= (first.sources if first else NOTHING) else first
    return _flat([*head, Unknown(sources, Kind.TEXT, reason=why), *tail])


def _common(a: Written, b: Written, edge: int) -> Written:
    """Takes from two texts the constant at which both begin or end."""
    if not (a and b and isinstance(a[edge], str) and isinstance(b[edge], str)):
        return []
    x, y = str(a[edge]), str(b[edge])
    shared = commonprefix([x[::-1], y[::-1]])[::-1] if edge else commonprefix([x, y])  # noqa: RUF071  (texts, no paths)
    if not shared:
        return []
    for parts, text in ((a, x), (b, y)):
        rest = text[: len(text) - len(shared)] if edge else text[len(shared) :]
        parts[edge : edge + 1 or None] = [rest] if rest else []
    return [shared]


def outline(state: PathState) -> Hashable:
    """Returns what a round of a loop may change of a state: equal outlines, and another round changes nothing."""
    scopes = tuple(_outline(scope) for scope in state.scopes)
    heap = tuple((place, _outline(values)) for place, values in state.heap.items())
    return scopes, heap, _outline(state.out or []), state.cause


def _outline(value: Any) -> Hashable:
    match value:
        case Unknown():
            return (value.sources, value.kind, value.key, value.truth, value.ends, value.never)
        case Text(parts):
            return tuple(map(_outline, parts))
        case Macro(node, depth):
            return (id(node), depth)
        case Loop():
            return "loop"  # of a loop outside, where it stays as it is
        case Safe(inner):
            return ("safe", _outline(inner))
        case Messages():
            return (value.drop, len(value.tail), value.reverse, value.indices)
        case dict():
            return tuple((key, _outline(item)) for key, item in value.items())
        case list() | tuple():
            return tuple(map(_outline, value))
    return repr(value)


_PURE = frozenset({"range", "dict", "namespace", "raise_exception"})
_FOREIGN = (nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends, nodes.Block)


def reads(
    macro: Macro, state: PathState, operations: Operations, known: dict[int, set[str] | None]
) -> frozenset[Source] | None:
    """Sources of all that a macro and those that it calls name; None where one of them changes what is not its own."""
    found = NOTHING
    seen: set[int] = set()
    waiting = [macro]
    while waiting:
        macro = waiting.pop()
        place = id(macro.node)
        if place in seen:
            continue
        seen.add(place)
        if place not in known:
            known[place] = _names(macro.node, operations)
        names = known[place]
        if names is None:
            return None
        defining = PathState(state.scopes[: macro.depth], state.heap, None)
        for name in names:
            value = defining.find(name) if defining.has(name) else Function(name)
            if isinstance(value, Macro):
                waiting.append(value)
            elif isinstance(value, Namespace):
                found |= sources_of(state.heap[value.place])
            elif not isinstance(value, Function):
                found |= sources_of(value)
            elif name == "strftime_now":
                found |= {Source.CLOCK}
            elif operations.is_global(name) and name not in _PURE:
                return None
    return found


def _names(node: nodes.Macro, operations: Operations) -> set[str] | None:
    """Names that a macro's body has, but for its arguments; None where it has effects."""
    if any(True for _ in node.find_all(_FOREIGN)) or _changes(node.body, set()):
        return None
    if not all(operations.knows(part.name) for part in node.find_all(nodes.Filter)):
        return None
    return {part.name for part in node.find_all(nodes.Name)} - {argument.name for argument in node.args}


def _changes(body: Iterable[nodes.Node], own: set[str]) -> bool:
    """Whether statements may set what is in a namespace that was not made before them in the same macro."""
    own = set(own)
    for part in body:
        if isinstance(part, nodes.Assign | nodes.AssignBlock) and isinstance(part.target, nodes.NSRef):
            if part.target.name not in own:
                return True
        elif isinstance(part, nodes.Assign):
            names = {part.target.name} if isinstance(part.target, nodes.Name) else _set_names(part.target)
            own = own | names if _is_new(part.node) else own - names
        elif isinstance(part, nodes.AssignBlock):
            own -= _set_names(part)
        elif isinstance(part, nodes.For):
            own -= _set_names(part.target)
        if any(_changes(getattr(part, block, ()), own) for block in ("body", "elif_", "else_")):
            return True
        if isinstance(part, nodes.If):
            own -= {name for assign in part.find_all(nodes.Assign) for name in _set_names(assign.target)}
    return False


def _set_names(node: nodes.Node) -> set[str]:
    return {name.name for name in (node, *node.find_all(nodes.Name)) if isinstance(name, nodes.Name)}


def _is_new(node: nodes.Node) -> bool:
    """Whether an expression makes a namespace."""
    return isinstance(node, nodes.Call) and isinstance(node.node, nodes.Name) and node.node.name == "namespace"
