"""Finds out from a template's source whether it reads content in parts: whether it goes through a list of them.

The source is walked as a syntax tree. All messages are taken to have one role, and content to be a list of parts:

1. What each name stands for is followed: the messages, one message, its content, one part. They pass through `set`,
   loops, namespaces and the arguments of macros.
2. A branch is left out where its test is known to fail: `message.role == 'system'` for users, `content is string`.
3. The template reads parts where it loops over content, asks an item of it for a key (`content[0].text`), or passes it
   to a filter that does (`map`, `selectattr`).

Example: Llama 3.2 asks `message.content is iterable` and then prints it as JSON, so it reads no parts. Its sibling with
vision loops over a user's content, and takes a system message's only as a string.

A test that is not understood takes both ways, so the answer may be yes for a template that never gets there. What it
really writes is then found out by a render (`content_parts`).
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache

from jinja2 import nodes

from rolloutpool_common.rendering.transformers_compat import parse_template

__all__ = ["reads_parts"]

_Kinds = frozenset[str]
"""What a value may be: `messages`, `message`, `content`, `part`, `role`, `loop` (of messages)."""
_Names = dict[str, _Kinds]

_NOTHING: _Kinds = frozenset()
_READING_FILTERS = frozenset({"groupby", "map", "rejectattr", "selectattr", "unique"})
_KEEPING_FILTERS = frozenset({"d", "default", "list", "reject", "reverse", "select"})
"""Their result is of the kind of what they are given."""
_ROLE_FILTERS = frozenset({"lower", "string", "trim"})
_TESTS = {
    "boolean": False,
    "defined": True,
    "iterable": True,
    "mapping": False,
    "none": False,
    "number": False,
    "sequence": True,
    "string": False,
    "undefined": False,
}
"""What tests say of a list."""
_ROUNDS = 3
"""A loop is walked so often, because what its body sets is read by its next round."""
_DEEPEST = 8
"""Calls of macros inside each other."""


@lru_cache(256)
def reads_parts(source: str, role: str) -> bool:
    """Whether a template goes through the parts of a message's content.

    Args:
        source: Of the template.
        role: Of the message.
    """
    tree = parse_template(source)
    if tree is None:
        return False
    walk = _Walk(role, {macro.name: macro for macro in tree.find_all(nodes.Macro)})
    walk.block(tree.body, {"messages": frozenset({"messages"})})
    return walk.reads


class _Walk:
    """One walk through a template."""

    def __init__(self, role: str, macros: dict[str, nodes.Macro]) -> None:
        self.reads = False
        self._role = role
        self._macros = macros
        self._depth = 0
        self._seen: set[tuple[str, tuple[_Kinds, ...]]] = set()

    def block(self, body: Iterable[nodes.Node], names: _Names) -> None:
        """Walks statements in order; `names` changes with them."""
        for node in body:
            if self.reads:
                return
            self._statement(node, names)

    def _statement(self, node: nodes.Node, names: _Names) -> None:
        if isinstance(node, nodes.If):
            self._branches(node, names)
        elif isinstance(node, nodes.For):
            self._loop(node, names)
        elif isinstance(node, nodes.Assign):
            self._assign(node.target, node.node, names)
        elif isinstance(node, nodes.AssignBlock):
            self.block(node.body, names)
            self._bind(node.target, _NOTHING, names)
        elif isinstance(node, nodes.With):
            for target, value in zip(node.targets, node.values, strict=True):
                self._bind(target, self._kinds(value, names), names)
            self.block(node.body, names)
        elif isinstance(node, nodes.Expr):
            self._kinds(node, names)
        elif not isinstance(node, nodes.Macro):  # walked where it is called
            self.block(node.iter_child_nodes(), names)

    def _branches(self, node: nodes.If, names: _Names) -> None:
        ends: list[_Names] = []
        for test, body in ((node.test, node.body), *((part.test, part.body) for part in node.elif_)):
            self._kinds(test, names)
            verdict = self._verdict(test, names)
            if verdict is False:
                continue
            ends.append(dict(names))
            self.block(body, ends[-1])
            if verdict is True:
                break
        else:
            ends.append(dict(names))
            self.block(node.else_, ends[-1])
        for end in ends:
            for name, kinds in end.items():
                names[name] = names.get(name, _NOTHING) | kinds

    def _loop(self, node: nodes.For, names: _Names) -> None:
        over = self._kinds(node.iter, names)
        item: set[str] = set()
        if "messages" in over:
            item.add("message")
        if "content" in over:
            self.reads = True
        loop = frozenset({"loop"}) if "messages" in over else _NOTHING
        for _ in range(_ROUNDS):
            inner = {**names, "loop": loop}
            self._bind(node.target, frozenset(item), inner)
            if node.test is not None and self._verdict(node.test, inner) is False:
                break
            self.block(node.body, inner)
            # What a body sets is gone after its loop, but for namespaces.
            spaces = {name: kinds for name, kinds in inner.items() if "." in name}
            names.update({name: names.get(name, _NOTHING) | kinds for name, kinds in spaces.items()})
        self.block(node.else_, names)

    def _assign(self, target: nodes.Node, value: nodes.Node, names: _Names) -> None:
        if isinstance(target, nodes.Name) and isinstance(value, nodes.Call) and _name(value.node) == "namespace":
            for pair in value.kwargs:
                names[f"{target.name}.{pair.key}"] = self._kinds(pair.value, names)
            return
        if isinstance(target, nodes.Tuple) and isinstance(value, nodes.Tuple):
            for one, given in zip(target.items, value.items, strict=False):
                self._bind(one, self._kinds(given, names), names)
            return
        self._bind(target, self._kinds(value, names), names)

    def _bind(self, target: nodes.Node, kinds: _Kinds, names: _Names) -> None:
        if isinstance(target, nodes.Name):
            names[target.name] = kinds
        elif isinstance(target, nodes.NSRef):
            name = f"{target.name}.{target.attr}"
            names[name] = names.get(name, _NOTHING) | kinds

    def _kinds(self, node: nodes.Node | None, names: _Names) -> _Kinds:
        """What a value may be. Walks all of it, because any part of an expression may read parts."""
        if isinstance(node, nodes.Name):
            return names.get(node.name, _NOTHING)
        if isinstance(node, nodes.CondExpr):
            verdict = self._verdict(node.test, names)
            self._kinds(node.test, names)
            first = _NOTHING if verdict is False else self._kinds(node.expr1, names)
            return first | (_NOTHING if verdict is True else self._kinds(node.expr2, names))
        if isinstance(node, nodes.And | nodes.Or):
            return self._kinds(node.left, names) | self._kinds(node.right, names)
        if isinstance(node, nodes.Add):
            return (self._kinds(node.left, names) | self._kinds(node.right, names)) & {"messages"}
        if isinstance(node, nodes.Getattr | nodes.Getitem):
            return self._item(node, names)
        if isinstance(node, nodes.Filter):
            return self._filtered(node, names)
        if isinstance(node, nodes.Call):
            return self._called(node, names)
        for child in () if node is None else node.iter_child_nodes():
            self._kinds(child, names)
        return _NOTHING

    def _item(self, node: nodes.Getattr | nodes.Getitem, names: _Names) -> _Kinds:
        of = self._kinds(node.node, names)
        if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
            return of & {"messages", "content"}
        key = node.attr if isinstance(node, nodes.Getattr) else _constant(node.arg)
        found: set[str] = set(names.get(f"{_name(node.node)}.{key}", _NOTHING))
        if "messages" in of:
            found.add("message")
        if "message" in of:
            found |= {"content", "role"} & {key} if isinstance(key, str) else {"content", "role"}
        if "loop" in of and key in ("nextitem", "previtem"):
            found.add("message")
        if "content" in of and not isinstance(key, str):
            found.add("part")
        # A string has no such keys, but its characters are compared as they are.
        if "part" in of:
            self.reads = True
        return frozenset(found)

    def _filtered(self, node: nodes.Filter, names: _Names) -> _Kinds:
        of = self._kinds(node.node, names)
        for argument in (*node.args, *(pair.value for pair in node.kwargs)):
            self._kinds(argument, names)
        by_attribute = node.name in ("join", "sum") and (len(node.args) > 1 or bool(node.kwargs))
        if "content" in of and (node.name in _READING_FILTERS or by_attribute):
            self.reads = True
        if node.name in _KEEPING_FILTERS or (node.name in _READING_FILTERS and "messages" in of):
            return of
        if node.name in ("first", "last"):
            return frozenset({"messages": "message", "content": "part"}[kind] for kind in of & {"messages", "content"})
        return of & {"role"} if node.name in _ROLE_FILTERS else _NOTHING

    def _called(self, node: nodes.Call, names: _Names) -> _Kinds:
        given = [self._kinds(argument, names) for argument in node.args]
        named = {pair.key: self._kinds(pair.value, names) for pair in node.kwargs}
        macro = self._macros.get(_name(node.node))
        if macro is not None:
            self._enter(macro, given, named, names)
            return _NOTHING
        of = self._kinds(node.node, names)
        if isinstance(node.node, nodes.Getattr) and node.node.attr == "get" and node.args:
            holder = self._kinds(node.node.node, names)
            key = _constant(node.args[0])
            if "part" in holder:
                self.reads = True
            if "message" in holder:
                return frozenset({"content", "role"} & {key} if isinstance(key, str) else {"content", "role"})
        return of

    def _enter(self, macro: nodes.Macro, given: Sequence[_Kinds], named: dict[str, _Kinds], names: _Names) -> None:
        arguments = [argument.name for argument in macro.args]
        bound = {**dict.fromkeys(arguments, _NOTHING), **dict(zip(arguments, given, strict=False)), **named}
        key = macro.name, tuple(bound[name] for name in arguments)
        if self._depth >= _DEEPEST or key in self._seen:
            return
        self._seen.add(key)
        self._depth += 1
        self.block(macro.body, {**names, **bound})
        self._depth -= 1

    def _verdict(self, test: nodes.Node, names: _Names) -> bool | None:
        """What a test gives; None where that is not known."""
        if isinstance(test, nodes.Not):
            verdict = self._verdict(test.node, names)
            return None if verdict is None else not verdict
        if isinstance(test, nodes.And | nodes.Or):
            decides = isinstance(test, nodes.Or)
            sides = [self._verdict(test.left, names), self._verdict(test.right, names)]
            return decides if decides in sides else None if None in sides else not decides
        if isinstance(test, nodes.Test):
            is_content = self._kinds(test.node, names) == {"content"}
            return _TESTS.get(test.name) if is_content else None
        if isinstance(test, nodes.Compare) and len(test.ops) == 1:
            return self._compared(test.expr, test.ops[0], names)
        return None

    def _compared(self, left: nodes.Expr, operand: nodes.Operand, names: _Names) -> bool | None:
        right = operand.expr
        if self._kinds(left, names) == {"role"}:
            value = _constant(right)
        elif self._kinds(right, names) == {"role"} and operand.op in ("eq", "ne"):
            value = _constant(left)
        else:
            return None
        if isinstance(value, str) and operand.op in ("eq", "ne"):
            return (value == self._role) is (operand.op == "eq")
        if isinstance(value, list | tuple) and operand.op in ("in", "notin"):
            return (self._role in value) is (operand.op == "in")
        return None


def _name(node: nodes.Node) -> str:
    return node.name if isinstance(node, nodes.Name) else ""


def _constant(node: nodes.Node) -> object:
    try:
        return node.as_const() if isinstance(node, nodes.Expr) else None
    except nodes.Impossible:
        return None
