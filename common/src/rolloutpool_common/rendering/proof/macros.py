"""What the text of a macro may depend on beside its arguments, read off its body without running it."""

from collections.abc import Iterable

from jinja2 import nodes

from rolloutpool_common.rendering.proof.claims import Source
from rolloutpool_common.rendering.proof.operations import Operations
from rolloutpool_common.rendering.proof.state import PathState
from rolloutpool_common.rendering.proof.values import NOTHING, Function, Macro, Namespace, sources_of

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
