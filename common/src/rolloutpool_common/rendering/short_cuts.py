"""Deltas for less than the rule costs, where a proof says that they are the same.

The rule (`delta`) renders all of the history, five times. For most templates less will do. What a delta depends on is
proved once for each shape of a turn and its new messages (`proof`), by reading the template; then:

1. **Concatenation.** Where the text behind the turn is proved to be constants and the new messages' own words, it is
   put together from these. The proof names literals to which the template compares words, and words that it trims. A
   word that holds such a literal, that is empty, or that is trimmed and has white space at an edge is not joined. Nor
   is one that makes a control string, alone or with what stands beside it. The text is joined first and then encoded as
   one, because ids that meet at a border may merge.
2. **Smaller context.** Where only independence of earlier messages is proved, also for words that are not joined, the
   rule renders one question, behind the real system message, in the place of the history; and it remembers where the
   turn's end is.
3. **The rule** on the whole history for everything else.

A shape's first delta is made by the rule, which shows in which form the template takes it. Many shapes come once, so
the template is read for a shape when it comes again. Then the first delta, too, is compared with what the proof says.

A proof is only as good as the lines that imitate Jinja. So each shape's first, second, fourth, eighth … and every 64th
delta is made by the rule as well, and the two are compared. Where they differ, the shape goes by the rule for good, and
the log says so: a **doubt** never ends, and holds in all processes (`doubts`).
"""

import logging
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any, TypeVar

from rolloutpool_common.protocol.messages import text_of
from rolloutpool_common.rendering import sentinel
from rolloutpool_common.rendering.codec import Codec
from rolloutpool_common.rendering.delta import Cut, Delta, DeltaRule, Form
from rolloutpool_common.rendering.doubts import Doubts, Shape, Use, name_of
from rolloutpool_common.rendering.errors import HistoryRewritten, RenderFailed, TemplateRefused
from rolloutpool_common.rendering.proof.claims import Joint, NewMessage, Proof, Source, TurnShape
from rolloutpool_common.rendering.proof.prover import prove
from rolloutpool_common.rendering.render_clock import one_time
from rolloutpool_common.rendering.sentinel import Continuation, new_messages_of
from rolloutpool_common.rendering.template import Message, Template, Tools, normalise
from rolloutpool_common.rendering.transformers_compat import template_environment
from rolloutpool_common.rendering.turn_end import TurnEnd, sampled_tail
from rolloutpool_common.tokens.entries import TokenizerFingerprint

_log = logging.getLogger(__name__)

_SHAPES = 512
"""Shapes that are remembered, of some hundred bytes each."""
_CUTS = 64
"""Ends of turns that are remembered of a shape; most have one."""
SHORT_CHARACTERS = 16_000
SHORT_MESSAGES = 64
"""Up to here the whole history costs no more than a smaller context, and is rendered to compare."""
_EVERY = 64
_USER: dict[str, Any] = {"role": "user", "content": "x"}

_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class _Met:
    """A shape that was met once, and what the rule then found."""

    turn: TurnShape
    kwargs: Mapping[str, Any]
    form: Form
    new: Sequence[Message]
    text: str
    """What stands behind the turn."""


@dataclass(slots=True)
class _Known:
    """A shape, what is proved of it, and what use has taught."""

    proof: Proof
    form: Form
    """As the rule found it."""
    shape: Shape
    """What comparisons have shown of it."""
    turn: TurnShape
    kwargs: Mapping[str, Any]
    joint: Joint
    cuts: dict[Hashable, Cut] = field(default_factory=dict)
    """By what stands behind the turn, and by how its end was sampled."""
    uses: int = 0

    def due(self, continuation: Continuation) -> bool:
        """Whether this use is compared: the first, second, fourth … and each 64th whose history is short."""
        self.uses += 1
        return self.uses & (self.uses - 1) == 0 or (self.uses % _EVERY == 0 and _is_short(continuation.history))


class DeltaRenderer:
    """Renders deltas with one template. Thread-safe."""

    def __init__(
        self, template: Template, codec: Codec, end: TurnEnd, fingerprint: TokenizerFingerprint, doubts: Doubts
    ) -> None:
        """`end` cuts the ends of turns; `fingerprint` is the tokenizer's."""
        self._template = template
        self._codec = codec
        self.rule = DeltaRule(template, codec, end)
        self._fingerprint = fingerprint
        self._doubts = doubts
        self._met: dict[Hashable, _Met] = {}
        self._known: dict[Hashable, _Known] = {}
        self._proofs: dict[Hashable, Proof] = {}
        self._read_tools: dict[Hashable, bool] = {}
        self._lock = Lock()
        self.reads_history = False
        """Whether a shape that was found so far is rendered with all of its history."""

    def render(
        self,
        new_messages: Sequence[Message],
        sampled: Sequence[int],
        *,
        history: Sequence[Message] | None,
        tools: Tools | None,
        template_kwargs: Mapping[str, Any] | None,
    ) -> Delta:
        """Renders the delta of messages after a turn of the policy, of which `sampled` has the last ids."""
        kwargs = template_kwargs or {}
        if history is None:
            with one_time():
                return self._without_history(new_messages_of(new_messages), sampled, tools, kwargs)
        continuation = Continuation(new_messages, history, tools or None, kwargs)
        key = _key(continuation)
        if key is None:
            continuation = _normal(continuation)
            key = _key(continuation)
        known = self._known.get(key)
        if known is None and (met := self._met.get(key)) is not None:
            known = self._learn(key, met)
        if known is not None and known.joint.parts and known.shape.name not in self._doubts:
            delta = self._concatenated(known, continuation.new, sampled)
            if delta is not None and not known.due(continuation):
                return delta
        else:
            delta = None
        # All renders are compared with each other, so they must print one time.
        with one_time():
            return self._rendered(key, known, continuation, sampled, delta)

    def _rendered(
        self,
        key: Hashable,
        known: _Known | None,
        continuation: Continuation,
        sampled: Sequence[int],
        joined: Delta | None,
    ) -> Delta:
        if key is None:
            return self._by_rule(continuation, sampled)
        if known is None:
            return self._first(key, continuation, sampled)
        if joined is not None:
            return self._compared(known, continuation, sampled, joined)
        if known.shape.name in self._doubts:
            self.reads_history = True
            return self._by_rule(continuation, sampled)
        delta = self._in_smaller_context(known, continuation, sampled)
        if delta is None:
            return self._by_rule(continuation, sampled)
        return self._compared(known, continuation, sampled, delta) if known.due(continuation) else delta

    def proof_of(self, continuation: Continuation) -> Proof:
        """Returns what is proved of deltas of this shape."""
        found = self.rule.find(continuation)
        shape = found.shape(system=_begins_with_system(found.real.past))
        return self.proof(shape, continuation.kwargs, whole=True)

    def proof(self, shape: TurnShape, kwargs: Mapping[str, Any], *, whole: bool = False) -> Proof:
        """What is proved of a shape; remembered. Without `whole`, a text whose parts are known may be independent."""
        key = shape, arguments_key(kwargs), whole
        found = self._proofs.get(key)
        if found is None:
            # Outside the lock, because it takes milliseconds. Two threads may find the same proof at once.
            environment = template_environment(self._template.source)
            if environment is None:
                raise RenderFailed("The chat template cannot be compiled.")
            source, names = self._template.source, self._template.names
            found = prove(environment, source, shape, kwargs=kwargs, names=names, whole=whole)
            self._remember(self._proofs, key, found)
        return found

    def reads_tools(self, kwargs: Mapping[str, Any]) -> bool:
        """Whether a result or a user's message may be written otherwise where there are tools, or because of them."""
        key = arguments_key(kwargs)
        found = self._read_tools.get(key)
        if found is None:
            found = self._find_reads_tools(kwargs)
            self._remember(self._read_tools, key, found)
        return found

    def _find_reads_tools(self, kwargs: Mapping[str, Any]) -> bool:
        result = NewMessage("tool", ("content", "name", "role", "tool_call_id"))
        for calls, new in ((1, result), (0, NewMessage("user", ("content", "role")))):
            bare, shown = (TurnShape(not calls, calls, False, (), (new,), False, tools) for tools in (False, True))
            try:
                parts = self.proof(shown, kwargs).parts
                if parts is None or parts != self.proof(bare, kwargs).parts:
                    return True
            except TemplateRefused:
                return True
        return False

    def _without_history(
        self,
        new: list[dict[str, Any]],
        sampled: Sequence[int],
        tools: Tools | None,
        kwargs: Mapping[str, Any],
    ) -> Delta:
        found = self.rule.find(Continuation(new, [_USER, sentinel.assumed_turn(new)], tools, kwargs))
        for system in (False, True):
            proof = self.proof(found.shape(system=system), kwargs, whole=True)
            if not proof.independent or Source.SYSTEM in proof.reads:
                what = "system message" if proof.independent else "history"
                raise HistoryRewritten(f"What the template writes here depends on the {what}, which is not given.")
        return self.rule.finish(found, sampled_tail(sampled, self._codec))

    def _first(self, key: Hashable, continuation: Continuation, sampled: Sequence[int]) -> Delta:
        """The first delta of a shape: by the rule, which shows in which form the template takes it."""
        short = False
        try:
            found = self.rule.find(continuation)
        except RenderFailed:
            if self._name(key) in self._doubts:
                raise
            # A history with calls that are no calls, for example. Where it does not matter, it need not be rendered.
            short, found = True, self.rule.find(_in_short(continuation))
            system = _begins_with_system(found.real.past)
            if not self.proof(found.shape(system=system), continuation.kwargs, whole=True).independent:
                raise
        turn = found.shape(system=_begins_with_system(found.real.past))
        met = _Met(turn, continuation.kwargs, found.form, found.real.new, found.text)
        # Reading the template costs little beside a long text, and is cheaper than to keep that.
        if short or len(met.text) > SHORT_CHARACTERS:
            self._learn(key, met)
        else:
            self._remember(self._met, key, met)
        return self.rule.finish(found, sampled_tail(sampled, self._codec))

    def _learn(self, key: Hashable, met: _Met) -> _Known:
        """Finds out what is proved of a shape, and holds it against the shape's first delta."""
        proof = self.proof(met.turn, met.kwargs)
        shape = self._doubts.shape(self._name(key))
        known = _Known(proof, met.form, shape, met.turn, met.kwargs, Joint(proof, self._codec.pattern))
        joined = known.joint.join(met.new)
        if joined is not None:
            self._note(known, equal=joined == (met.text, met.form.start))
        self.reads_history = self.reads_history or (proof.parts is None and not proof.independent)
        self._remember(self._known, key, known)
        with self._lock:
            self._met.pop(key, None)
        return known

    def _name(self, key: Hashable) -> str:
        return name_of(self._fingerprint, self._template.source, key)

    def _concatenated(self, known: _Known, new: Sequence[Message], sampled: Sequence[int]) -> Delta | None:
        joined = known.joint.join(new)
        if joined is None:
            return None
        text, start = joined
        tail = sampled_tail(sampled, self._codec)
        end = start, tail.control, tail.space
        cut = known.cuts.get(end)
        if cut is None:
            cut = self.rule.cut(text, start, known.form.end, tail, calls=known.turn.calls > 0)
            # Where nothing was sampled, or the end has its control string twice, more decides than these three.
            if tail.any and not (tail.control and start.count(tail.control) > 1):
                self._remember(known.cuts, end, cut, _CUTS)
        return Delta(cut.close_ids, self.rule.glue_ids(text, cut), Use(known.shape, known.shape.stretch))

    def _in_smaller_context(self, known: _Known, continuation: Continuation, sampled: Sequence[int]) -> Delta | None:
        # Words that the guard refuses may be written otherwise, and still without a look at the history.
        proof = self.proof(known.turn, known.kwargs, whole=True) if known.joint.parts else known.proof
        if not proof.independent:
            return None
        try:
            found = self.rule.again(known.form, _in_short(continuation))
            made = None if found is None else self.rule.finish(found, sampled_tail(sampled, self._codec))
        except TemplateRefused:
            return None  # It may want an answer before such a turn, or this turn's words another form.
        return None if made is None else replace(made, use=Use(known.shape, known.shape.stretch))

    def _compared(self, known: _Known, continuation: Continuation, sampled: Sequence[int], delta: Delta) -> Delta:
        try:
            by_rule = self._by_rule(continuation, sampled, known)
        except RenderFailed:
            return delta  # A history that cannot be rendered, such as one with calls that are no calls, proves nothing.
        except TemplateRefused:
            self._note(known, equal=False)
            raise
        self._note(known, equal=by_rule == delta)
        return by_rule

    def _note(self, known: _Known, *, equal: bool) -> None:
        if equal:
            return self._doubts.equal(known.shape)
        self._doubts.doubt(known.shape)
        self.reads_history = True
        _log.error(
            "delta_doubted: a short cut gave another delta than the rule; shape %s goes by the rule from now on. "
            "Rollouts since its last equal comparison may have wrong ids. Please report the template.",
            known.shape.name,
        )

    def _by_rule(self, continuation: Continuation, sampled: Sequence[int], known: _Known | None = None) -> Delta:
        # From the 64th use on, the form that the rule found is not looked for once more: two renders, not six.
        found = self.rule.again(known.form, continuation) if known and known.uses >= _EVERY else None
        return self.rule.finish(found or self.rule.find(continuation), sampled_tail(sampled, self._codec))

    def _remember(self, values: dict[Hashable, _Value], key: Hashable, value: _Value, most: int = _SHAPES) -> None:
        """Keeps a value, and forgets the oldest one where there are too many."""
        with self._lock:
            values[key] = value
            if len(values) > most:
                del values[next(iter(values))]


def _key(continuation: Continuation) -> Hashable | None:
    """Returns what tells shapes apart; None where proofs are about none, or the messages aren't in normal form.

    One function with loops, because each delta comes here: enough stands before the turn (`TurnShape`), the new
    messages and the turn have texts alone beside calls, and the turn doesn't end in white space. Where turns have no
    end, only the rule sees whose that is.
    """
    new, history = [], continuation.history
    for message in continuation.new:
        role = message.get("role")
        if role == "assistant" or "content" not in message or (role == "tool" and "tool_call_id" not in message):
            return None
        for value in message.values():
            if not isinstance(value, str):
                return None
        new.append((role, *sorted(message)))
    if not new or len(history) < 2:
        return None
    first, turn = history[0], history[-1]
    system = first["role"] == "system"
    if first["role"] == "developer" or (system and (len(history) == 2 or not isinstance(first.get("content"), str))):
        return None
    if turn["role"] != "assistant":
        return None
    said, calls = turn.get("content") or "", turn.get("tool_calls") or ()
    keys = ["content", "tool_calls"] if calls else ["content"]
    for name, value in turn.items():
        if name not in ("content", "tool_calls") and value is not None:
            if not isinstance(value, str):
                return None
            keys.append(name)
    if not isinstance(said, str) or said[-1:].isspace():
        return None
    kwargs = arguments_key(continuation.kwargs) if continuation.kwargs else ""
    return tuple(new), len(calls), bool(said), tuple(sorted(keys)), system, continuation.tools is not None, kwargs


def _normal(continuation: Continuation) -> Continuation:
    """With the new messages and the turn in normal form; the rest of the history may be long."""
    new, history = new_messages_of(continuation.new), list(continuation.history)
    spoken = history and history[-1]["role"] == "assistant"
    turn = normalise([history.pop()])[0] if spoken else sentinel.assumed_turn(new)
    return replace(continuation, new=new, history=[*history, turn])


def _in_short(continuation: Continuation) -> Continuation:
    """With one question in the place of the history, behind the real system message."""
    history = continuation.history
    first = list(history[:1]) if _begins_with_system(history) else []
    return replace(continuation, history=[*first, _USER, history[-1]])


def _begins_with_system(history: Sequence[Message]) -> bool:
    return bool(history) and history[0]["role"] == "system"


def _is_short(history: Sequence[Message]) -> bool:
    """Whether the whole history is cheap to render."""
    return len(history) <= SHORT_MESSAGES and sum(len(text_of(message)) for message in history) <= SHORT_CHARACTERS


def arguments_key(kwargs: Mapping[str, Any]) -> str:
    """Writes template arguments as a key."""
    return repr(sorted(kwargs.items()))
