"""Deltas for less than the rule costs, where a proof says that they are the same.

The rule (`delta`) renders all of the history, five times. For most templates less will do. What a delta depends on is
proved once for each shape of a turn and its new messages (`proof`), by reading the template; then:

1. **Concatenation.** Where the text behind the turn is proved to be constants and the new messages' own words, it is
   put together from these. The proof names literals to which the template compares words; a word that holds one of
   them, that is empty, or that has white space at its edges goes by the rule. The text is joined first and then encoded
   as one, because ids that meet at a border may merge.
2. **Smaller context.** Where only independence of earlier messages is proved, the rule renders one question, behind the
   real system message, in the place of the history; and it remembers where the turn's end is.
3. **The rule** on the whole history for everything else.

A proof is only as good as the lines that imitate Jinja. So each shape's first, second, fourth, eighth … and every 64th
delta is made by the rule as well, and the two are compared. Where they differ, the shape goes by the rule for good, and
the log says so: a **doubt** never ends, and holds in all processes (`doubts`).
"""

import logging
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

from cachetools import LRUCache

from rolloutpool_common.protocol.messages import text_of
from rolloutpool_common.rendering import sentinel
from rolloutpool_common.rendering.codec import Codec
from rolloutpool_common.rendering.control_tokens import NONCE
from rolloutpool_common.rendering.delta import Behind, Delta, DeltaRule, Form, Placement
from rolloutpool_common.rendering.doubts import Doubts, Shape, Use, name_of
from rolloutpool_common.rendering.errors import HistoryRewritten, RenderFailed, TemplateRefused
from rolloutpool_common.rendering.forms import new_messages_of
from rolloutpool_common.rendering.proof import JsonWord, Proof, Source, TurnShape, prove
from rolloutpool_common.rendering.render_clock import one_time
from rolloutpool_common.rendering.template import Message, Template, normalise
from rolloutpool_common.rendering.transformers_compat import template_environment
from rolloutpool_common.rendering.turn_end import TurnEnd, sampled_tail
from rolloutpool_common.tokens.entries import TokenizerFingerprint

_log = logging.getLogger(__name__)

_SHAPES = 512
"""Shapes that are remembered, of some hundred bytes each."""
SHORT_CHARACTERS = 16_000
SHORT_MESSAGES = 64
"""Up to here the whole history costs no more than a smaller context, and is rendered to compare."""
_EVERY = 64
_USER: dict[str, Any] = {"role": "user", "content": "x"}


@dataclass(slots=True)
class _Known:
    """A shape, what is proved of it, and what use has taught."""

    proof: Proof
    form: Form
    """As the rule found it."""
    shape: Shape
    """What comparisons have shown of it."""
    uses: int = 0

    def due(self, asked: "_Asked") -> bool:
        """Whether this use is compared: the first, second, fourth … and each 64th whose history is short."""
        self.uses += 1
        return self.uses & (self.uses - 1) == 0 or (self.uses % _EVERY == 0 and asked.is_short())


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a delta is rendered of."""

    new: list[dict[str, Any]]
    history: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] | None
    kwargs: Mapping[str, Any]
    turn: dict[str, Any]

    def is_plain(self) -> bool:
        """Whether proofs are about it: enough stands before the turn (`TurnShape`), and all but calls are texts."""
        first = self.history[0] if len(self.history) > 1 else {"role": "developer"}
        if first["role"] == "developer":
            return False
        if first["role"] == "system" and (len(self.history) == 2 or not isinstance(first["content"], str)):
            return False
        return all(isinstance(value, str) for message in self.new for value in message.values()) and all(
            isinstance(value, str) for key, value in self.turn.items() if key != "tool_calls"
        )

    def is_short(self) -> bool:
        """Whether the whole history is cheap to render."""
        return (
            len(self.history) <= SHORT_MESSAGES
            and sum(len(text_of(message)) for message in self.history) <= SHORT_CHARACTERS
        )


class DeltaRenderer:
    """Renders deltas with one template. Thread-safe."""

    def __init__(
        self, template: Template, codec: Codec, end: TurnEnd, fingerprint: TokenizerFingerprint, doubts: Doubts
    ) -> None:
        """`end` cuts the ends of turns; `fingerprint` is the tokenizer's."""
        self._template = template
        self._codec = codec
        self._rule = DeltaRule(template, codec, end)
        self._fingerprint = fingerprint
        self._doubts = doubts
        self._known: LRUCache[Hashable, _Known] = LRUCache(_SHAPES)
        self._proofs: LRUCache[Hashable, Proof] = LRUCache(_SHAPES)
        # cachetools is not thread-safe: even a lookup reorders the cache.
        self._lock = Lock()
        self.reads_history = False
        """Whether a shape that was found so far depends on all of its history."""

    def render(
        self,
        new_messages: Sequence[Message],
        sampled: Sequence[int],
        *,
        history: Sequence[Message] | None,
        tools: Sequence[Mapping[str, Any]] | None,
        template_kwargs: Mapping[str, Any] | None,
    ) -> Delta:
        """Renders the delta of messages after a turn of the policy."""
        # All renders are compared with each other, so they must print one time.
        with one_time():
            return self._render(new_messages, sampled, history, tools, template_kwargs or {})

    def _render(
        self,
        new_messages: Sequence[Message],
        sampled: Sequence[int],
        history: Sequence[Message] | None,
        tools: Sequence[Mapping[str, Any]] | None,
        kwargs: Mapping[str, Any],
    ) -> Delta:
        new = new_messages_of(new_messages)
        if history is None:
            return self._without_history(new, sampled, tools, kwargs)
        # Only the turn itself; otherwise each delta would cost as much as its history is long.
        last = history[-1] if history else {}
        turn = normalise([last])[0] if last.get("role") == "assistant" else sentinel.assumed_turn(new)
        asked = _Asked(new, history, tools or None, kwargs, turn)
        key = self._key(asked)
        with self._lock:
            known = self._known.get(key)
        if known is not None and known.shape.name in self._doubts:
            self.reads_history = True
            return self._by_rule(asked, sampled)
        if not asked.is_plain():
            return self._by_rule(asked, sampled)
        if known is None:
            return self._learn(key, asked, sampled)
        delta = self._short_cut(known, asked, sampled)
        if delta is None:
            return self._by_rule(asked, sampled)
        delta = Delta(delta.close_ids, delta.glue_ids, Use(known.shape, known.shape.stretch))
        if known.due(asked):
            delta = self._compared(known, asked, sampled, delta)
        return delta

    def placement(
        self,
        new_messages: Sequence[Message],
        *,
        history: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None,
        template_kwargs: Mapping[str, Any] | None,
    ) -> tuple[Placement, Message]:
        """What a delta leaves out, and the turn as the rule renders it; arguments and errors as of `render`."""
        found = self._rule.find(new_messages, history=history, tools=tools, template_kwargs=template_kwargs)
        return found.form.placement, found.turn

    def proof_of(
        self,
        new_messages: Sequence[Message],
        *,
        history: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None,
        template_kwargs: Mapping[str, Any] | None,
    ) -> Proof:
        """What is proved of deltas of this shape; arguments and errors as of `render`."""
        found = self._rule.find(new_messages, history=history, tools=tools, template_kwargs=template_kwargs)
        return self._proof(found, template_kwargs or {}, _begins_with_system(found.past))

    def proof(self, shape: TurnShape, kwargs: Mapping[str, Any] | None = None) -> Proof:
        """What is proved of a shape; remembered."""
        key = shape, repr(sorted((kwargs or {}).items()))
        with self._lock:
            found = self._proofs.get(key)
        if found is None:
            # Outside the lock, because it takes milliseconds. Two threads may find the same proof at once.
            environment = template_environment(self._template.source)
            if environment is None:
                raise RenderFailed("The chat template cannot be compiled.")
            found = prove(environment, self._template.source, shape, kwargs=kwargs or {}, names=self._template.names)
            with self._lock:
                self._proofs[key] = found
        return found

    def reads_tools(self, kwargs: Mapping[str, Any]) -> bool:
        """Whether a result or a user's message may be written otherwise where there are tools, or because of them."""
        result = ("tool", ("content", "name", "role", "tool_call_id"))
        for calls, new in ((1, result), (0, ("user", ("content", "role")))):
            shapes = [TurnShape(not calls, calls, False, (), (new,), False, tools) for tools in (False, True)]
            try:
                bare, shown = (self.proof(shape, kwargs).parts for shape in shapes)
            except TemplateRefused:
                return True
            if bare is None or bare != shown:
                return True
        return False

    def _without_history(
        self,
        new: list[dict[str, Any]],
        sampled: Sequence[int],
        tools: Sequence[Mapping[str, Any]] | None,
        kwargs: Mapping[str, Any],
    ) -> Delta:
        history = [_USER, sentinel.assumed_turn(new)]
        found = self._rule.find(new, history=history, tools=tools, template_kwargs=kwargs)
        for system in (False, True):
            proof = self._proof(found, kwargs, system=system)
            if not proof.independent or Source.SYSTEM in proof.reads:
                what = "system message" if proof.independent else "history"
                raise HistoryRewritten(f"What the template writes here depends on the {what}, which is not given.")
        return self._rule.finish(found, sampled_tail(sampled, self._codec))

    def _key(self, asked: _Asked) -> Hashable:
        turn = asked.turn
        return (
            tuple((message["role"], *sorted(message)) for message in asked.new),
            len(turn.get("tool_calls") or ()),
            bool(turn["content"]),
            tuple(sorted(turn)),
            _begins_with_system(asked.history),
            asked.tools is not None,
            repr(sorted(asked.kwargs.items())) if asked.kwargs else "",
        )

    def _learn(self, key: Hashable, asked: _Asked, sampled: Sequence[int]) -> Delta:
        """The first delta of a shape: by the rule, which shows in which form the template takes it."""
        tail = sampled_tail(sampled, self._codec)
        shape = self._doubts.shape(name_of(self._fingerprint, self._template.source, key))
        try:
            found = self._find(asked, asked.history)
        except RenderFailed:
            if shape.name in self._doubts:
                raise
            # A history with calls that are no calls, for example. Where it does not matter, it need not be rendered.
            found = self._find(asked, self._context(asked))
            if not self._proof(found, asked.kwargs, _begins_with_system(asked.history)).independent:
                raise
        proof = self._proof(found, asked.kwargs, _begins_with_system(found.past))
        known = _Known(proof, found.form, shape)
        joined = self._joined(known, asked.new)
        if joined is not None:
            self._note(known, equal=joined == (found.text, found.form.start))
        self.reads_history = self.reads_history or not proof.independent
        with self._lock:
            self._known[key] = known
        return self._rule.finish(found, tail)

    def _short_cut(self, known: _Known, asked: _Asked, sampled: Sequence[int]) -> Delta | None:
        tail = sampled_tail(sampled, self._codec)
        if text_of(asked.turn)[-1:].isspace():
            return None  # Only the rule sees whether that is the policy's or the template's, where a turn has no end.
        joined = self._joined(known, asked.new)
        if joined is not None:
            return self._rule.cut(*joined, known.form.end, tail, calls=bool(asked.turn.get("tool_calls")))
        if not known.proof.independent:
            return None
        history = self._context(asked)
        try:
            found = self._rule.again(
                known.form, asked.new, history=history, tools=asked.tools, template_kwargs=asked.kwargs
            )
            return None if found is None else self._rule.finish(found, tail)
        except TemplateRefused:
            return None  # It may want an answer before such a turn, or this turn's words another form.

    def _joined(self, known: _Known, new: Sequence[Message]) -> tuple[str, str] | None:
        """The text behind the turn, and the part of it before the first new message's content."""
        parts, guard = known.proof.parts, known.proof.guard
        if parts is None:
            return None
        if not all(self._fits(text, guard) for message in new for key, text in message.items() if key != "role"):
            return None
        pieces = [part if isinstance(part, str) else part.write(new[part.message][part.key]) for part in parts]
        # JSON may write what reads as a control string where the word itself holds none.
        if not all(self._is_spared(pieces[i]) for i, part in enumerate(parts) if isinstance(part, JsonWord)):
            return None
        contents = (i for i, part in enumerate(parts) if not isinstance(part, str) and part.key == "content")
        return "".join(pieces), "".join(pieces[: next(contents, len(pieces))])

    def _fits(self, word: str, guard: frozenset[str]) -> bool:
        if not word or word[0].isspace() or word[-1].isspace() or NONCE in word:
            return False
        if any(literal in word for literal in guard):
            return False
        return self._is_spared(word)

    def _is_spared(self, word: str) -> bool:
        """Whether a word holds no control string and no edge of one."""
        escaper = self._codec.escaper
        return escaper.pattern.search(word) is None and not escaper.has_edges(word)

    def _compared(self, known: _Known, asked: _Asked, sampled: Sequence[int], delta: Delta) -> Delta:
        try:
            by_rule = self._by_rule(asked, sampled)
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

    def _by_rule(self, asked: _Asked, sampled: Sequence[int]) -> Delta:
        return self._rule.finish(self._find(asked, asked.history), sampled_tail(sampled, self._codec))

    def _find(self, asked: _Asked, history: Sequence[Message]) -> Behind:
        return self._rule.find(asked.new, history=history, tools=asked.tools, template_kwargs=asked.kwargs)

    def _context(self, asked: _Asked) -> list[Message]:
        first = list(asked.history[:1]) if _begins_with_system(asked.history) else []
        return [*first, _USER, asked.turn]

    def _proof(self, found: Behind, kwargs: Mapping[str, Any], system: bool) -> Proof:
        return self.proof(found.shape(system=system), kwargs)


def _begins_with_system(history: Sequence[Message]) -> bool:
    return bool(history) and history[0]["role"] == "system"
