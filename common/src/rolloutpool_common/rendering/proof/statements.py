"""Runs a template's statements with values that are partly unknown: both arms of a branch that nothing decides."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from jinja2 import Undefined, nodes

from rolloutpool_common.rendering.proof.access import Round, rounds
from rolloutpool_common.rendering.proof.claims import Source
from rolloutpool_common.rendering.proof.expressions import Expressions
from rolloutpool_common.rendering.proof.state import PathState, merge, outline, reads
from rolloutpool_common.rendering.proof.values import (
    NOTHING,
    Function,
    Kind,
    Loop,
    Macro,
    Namespace,
    NotUnderstood,
    Raised,
    Stream,
    Unknown,
    joined,
    sources_of,
    unknown,
)

_RECURSION = 2
"""As often a macro is run inside itself before its text is any that its arguments may give."""
_FIXPOINT = 12
"""Rounds until a loop over an unknown number of items must change nothing more."""

Signals = dict[str, PathState]
"""States at a `break` or a `continue`."""
Outcome = tuple[PathState | None, Signals]
"""The state behind a statement, None where no path comes there."""


class Statements(Expressions):
    """Runs statements of one template."""

    def __init__(self, *arguments: Any) -> None:
        """As `Expressions`."""
        super().__init__(*arguments)
        self.raises: frozenset[Source] = NOTHING
        """What decides whether the template raises an error."""
        self._stack: list[int] = []
        self._names: dict[int, set[str] | None] = {}

    def run(self, body: list[nodes.Node], variables: dict[str, Any]) -> PathState | None:
        """The state at the template's end; None where all paths raise an error."""
        try:
            state, _ = self._block(body, PathState([variables], {}, None))
        except Raised:
            return None
        return state

    def _depth(self) -> int:
        return len(self._stack)

    def _block(self, body: list[nodes.Node], state: PathState) -> Outcome:
        signals: Signals = {}
        now: PathState | None = state
        for node in body:
            if now is None:
                break
            self._step(node)
            visit = getattr(self, f"visit_{type(node).__name__}", None)
            if visit is None or not isinstance(node, nodes.Stmt):
                raise NotUnderstood(type(node).__name__)
            now, new = visit(node, now)
            for kind, stopped in new.items():
                merged = merge(signals.get(kind), stopped, NOTHING, self.reason(kind))
                if merged is not None:
                    signals[kind] = merged
        return now, signals

    def visit_Output(self, node: nodes.Output, state: PathState) -> Outcome:
        for part in node.nodes:
            value = self._evaluate(part, state)
            if isinstance(value, Namespace | Macro | Loop | Function | Stream):
                raise NotUnderstood("a namespace or a function that is printed")
            state.write(value, self.reason("prints"))
        return state, {}

    def visit_Assign(self, node: nodes.Assign, state: PathState) -> Outcome:
        self._set(node.target, self._evaluate(node.node, state), state)
        return state, {}

    def _set(self, target: nodes.Node, value: Any, state: PathState) -> None:
        if isinstance(target, nodes.Name):
            state.scopes[-1][target.name] = value
        elif isinstance(target, nodes.NSRef):
            namespace = state.find(target.name)
            if not isinstance(namespace, Namespace) or isinstance(value, Namespace | Macro | Loop | Function):
                raise NotUnderstood("an attribute that is set")
            state.heap[namespace.place][target.attr] = value
        elif isinstance(target, nodes.Tuple):
            known = isinstance(value, list | tuple)
            if known and len(value) != len(target.items):
                raise Raised
            for i, part in enumerate(target.items):
                self._set(part, value[i] if known else unknown(value), state)
        else:
            raise NotUnderstood(type(target).__name__)

    def _written(self, body: list[nodes.Node], state: PathState) -> Any:
        """The text of a block that is not printed where it stands."""
        inner: PathState | None = PathState([*state.scopes, {}], state.heap, [], state.cause, inner=True)
        inner, signals = self._block(body, inner)  # type: ignore[arg-type]
        if signals:
            raise NotUnderstood("a break out of a block")
        if inner is None:
            raise Raised
        state.heap = inner.heap
        state.scopes = inner.scopes[:-1]
        return joined(inner.out or [])

    def visit_AssignBlock(self, node: nodes.AssignBlock, state: PathState) -> Outcome:
        text = self._written(node.body, state)
        self._set(node.target, text if node.filter is None else self._filtered(node.filter, text, state), state)
        return state, {}

    def visit_FilterBlock(self, node: nodes.FilterBlock, state: PathState) -> Outcome:
        state.write(self._filtered(node.filter, self._written(node.body, state), state), self.reason("prints"))
        return state, {}

    def _filtered(self, node: nodes.Filter, text: Any, state: PathState) -> Any:
        if isinstance(node.node, nodes.Filter):
            text = self._filtered(node.node, text, state)
        value = self._apply(node, text, state)
        if isinstance(value, Stream):
            raise NotUnderstood("a generator that is kept")
        return value

    def visit_Macro(self, node: nodes.Macro, state: PathState) -> Outcome:
        state.scopes[-1][node.name] = Macro(node, len(state.scopes))
        return state, {}

    def visit_Break(self, node: nodes.Node, state: PathState) -> Outcome:
        return None, {"break": state}

    def visit_Continue(self, node: nodes.Node, state: PathState) -> Outcome:
        return None, {"continue": state}

    def visit_Scope(self, node: nodes.Scope | nodes.CallBlock, state: PathState) -> Outcome:
        if isinstance(node, nodes.CallBlock):
            called = node.call.node
            if not isinstance(called, nodes.ExtensionAttribute) or called.name != "_generation_support":
                raise NotUnderstood("a call block")
        state.scopes.append({})
        behind, signals = self._block(node.body, state)
        for end in (behind, *signals.values()):
            if end is not None:
                end.scopes.pop()
        return behind, signals

    visit_CallBlock = visit_Scope

    def visit_If(self, node: nodes.If, state: PathState) -> Outcome:
        return self._arms([node, *node.elif_], node.else_, state)

    def _arms(self, arms: list[nodes.If], other: list[nodes.Node], state: PathState) -> Outcome:
        if not arms:
            return self._block(other, state)
        arm, line = arms[0], arms[0].test.lineno
        condition = self._raw(arm.test, state)
        truth = self._comparisons.truth(condition)
        if truth is not None:
            return self._block(arm.body, state) if truth else self._arms(arms[1:], other, state)
        sources, cause = sources_of(condition), state.cause
        ways: list[Callable[[PathState], Outcome]] = [
            lambda way: self._block(arm.body, way),
            lambda way: self._arms(arms[1:], other, way),
        ]
        ends: list[Outcome] = []
        for run in ways:
            way = state.copy()
            way.cause = cause | sources
            try:
                ends.append(run(way))
            except Raised:
                self.raises |= way.cause
                ends.append((None, {}))
        (yes, broken), (no, others) = ends
        reason = self.reason("if", sources, line)
        signals = {kind: merge(broken.get(kind), others.get(kind), sources, reason) for kind in {**broken, **others}}
        if yes is None and no is None and not signals:
            raise Raised
        behind = merge(yes, no, sources, reason)
        if behind is not None and not signals:
            behind.cause = cause
        return behind, {kind: stopped for kind, stopped in signals.items() if stopped is not None}

    def visit_For(self, node: nodes.For, state: PathState) -> Outcome:
        if node.recursive:
            raise NotUnderstood("a recursive loop")
        items = self._raw(node.iter, state)
        planned = rounds(items.items if isinstance(items, Stream) else items)
        if node.test is not None:
            planned = self._chosen(node, planned, state)
        if not planned:
            state.scopes.append({})
            behind, signals = self._block(node.else_, state)
            for end in (behind, *signals.values()):
                if end is not None:
                    end.scopes.pop()
            return behind, signals
        if node.else_:
            raise NotUnderstood("a loop with else")
        run = _LoopRun(len(state.scopes))
        now: PathState | None = state
        cause = state.cause
        for part in planned:
            if now is None:
                break
            now = self._many(node, part, now, run) if part.many else self._once(node, part, now, run)
        behind = merge(now, run.broken, NOTHING, self.reason("for", line=node.lineno))
        if behind is None:
            raise Raised
        behind.cause = cause
        return behind, {}

    def _chosen(self, node: nodes.For, planned: list[Round], state: PathState) -> list[Round]:
        """The rounds of a loop with a condition."""
        assert node.test is not None
        for name in node.test.find_all(nodes.Name):
            # Jinja asks for the next item before it runs the body for this one.
            if name.name == "loop" or isinstance(state.find(name.name), Namespace | Macro):
                raise NotUnderstood("a loop's condition that may change in the loop")
        kept: list[Round] = []
        sources = NOTHING
        for part in planned:
            passed = self._passes(node, part, state)
            sources |= sources_of(part.value, passed)
            if passed is not False:
                kept.append(part)
        decided = not any(part.many or self._passes(node, part, state) is not True for part in kept)
        if decided and not any(part.many for part in planned):
            return rounds([part.value for part in kept])
        fields = {
            name: 1 if name == "depth" else 0 if name == "depth0" else Unknown(sources) for name in part.loop.fields
        }
        return [Round(part.value, Loop(fields), many=part.many) for part in kept]

    def _passes(self, node: nodes.For, part: Round, state: PathState) -> Any:
        """Whether an item passes a loop's condition."""
        if node.test is None:
            return True
        aside = state.copy()
        aside.scopes.append({})
        self._set(node.target, part.value, aside)
        try:
            value = self._raw(node.test, aside)
        except Raised:
            return True
        truth = self._comparisons.truth(value)
        return Unknown(sources_of(value)) if truth is None else truth

    def _once(self, node: nodes.For, part: Round, state: PathState, run: "_LoopRun") -> PathState | None:
        """One round."""
        skipped = None
        passed = self._passes(node, part, state)
        if passed is False:
            return state
        if passed is not True:
            skipped = state.copy()
            skipped.cause |= passed.sources
            state.cause |= passed.sources
        spare = state.copy() if part.many else skipped
        state.scopes.append({"loop": part.loop})
        # Another object in each round, because one of many items need not be the one of the round before.
        self._set(node.target, replace(part.value) if isinstance(part.value, Unknown) else part.value, state)
        reason = self.reason("for", sources_of(part.value), node.lineno)
        try:
            behind, signals = self._block(node.body, state)
        except Raised:
            if spare is None:
                raise
            self.raises |= state.cause
            return spare
        for end in (behind, *signals.values()):
            if end is not None:
                del end.scopes[run.depth :]
        run.broken = merge(run.broken, signals.get("break"), NOTHING, reason)
        return merge(merge(behind, signals.get("continue"), NOTHING, reason), skipped, NOTHING, reason)

    def _many(self, node: nodes.For, part: Round, state: PathState, run: "_LoopRun") -> PathState:
        """None, one or many rounds: until another one changes nothing."""
        before = state.copy()
        reason = self.reason("for", sources_of(part.value), node.lineno)
        for _ in range(_FIXPOINT):
            old = state.copy()
            new = self._once(node, part, state, run)
            if new is None:
                old.cause |= sources_of(part.value)
                return old
            merged = merge(old, new, sources_of(part.value), reason, before=before)
            assert merged is not None
            state = merged
            if outline(state) == outline(old):
                return state
        raise NotUnderstood("a loop that gathers something at each round")

    def _call_macro(self, macro: Macro, arguments: list[Any], named: dict[str, Any], state: PathState) -> Any:
        node = macro.node
        sources = sources_of(arguments, named)
        names = [argument.name for argument in node.args]
        if len(arguments) > len(names) or set(named) - set(names[len(arguments) :]):
            raise Raised
        deep = self._stack.count(id(node)) >= _RECURSION
        if deep or (sources and not sources & {Source.NEW, Source.TURN}):
            read = reads(macro, state, self._operations, self._names)
            if read is not None:
                return Unknown(sources | read, Kind.TEXT)
            if deep:
                raise NotUnderstood("a macro that calls itself")
        given = dict(zip(names, arguments, strict=False)) | named
        scope = {name: given.get(name, Undefined(name=name)) for name in names}
        inner = PathState([*state.scopes[: macro.depth], scope], state.heap, [], state.cause, inner=True)
        first_default = len(names) - len(node.defaults)
        for name, default in zip(names[first_default:], node.defaults, strict=True):
            if name not in given:
                scope[name] = self._evaluate(default, inner)
        self._stack.append(id(node))
        try:
            behind, _ = self._block(node.body, inner)
        finally:
            self._stack.pop()
        if behind is None:
            raise Raised
        state.heap = behind.heap
        return joined(behind.out or [])


@dataclass
class _LoopRun:
    """A loop that is being run."""

    depth: int
    """Scopes outside of it."""
    broken: PathState | None = None
    """The state where it was broken."""
