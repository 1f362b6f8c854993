"""Proves what stands behind a policy's turn by running its template once, with all that the shape does not say unknown.

1. The conversation is one first message, any others, the turn with its sentinel, and new messages. Roles, keys and
   calls of the last two are known; their texts are not.
2. What is known is computed as Jinja does. A branch that nothing decides is run both ways, a loop over an unknown
   number of items until another round changes nothing, and what differs between two ways becomes an unknown that
   depends on what decided.
3. What is then written behind the last sentinel is constants, words of new messages, and unknowns with their sources.

Two runs: one in which the words are assumed to hold none of the literals that the template looks for says of what the
text is made. One with words of which nothing is known says what the text depends on; where the first run assumed
nothing, it is that one. Where the first has found the parts of the text, few ask for the second.

A proof allows and never forbids: whatever is not imitated here is left unproved, with the reason.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment

from rolloutpool_common.rendering.proof.claims import (
    JsonWord,
    NewMessage,
    Proof,
    Reason,
    Source,
    TableWord,
    TurnShape,
    Word,
)
from rolloutpool_common.rendering.proof.comparisons import Assumptions
from rolloutpool_common.rendering.proof.statements import Statements
from rolloutpool_common.rendering.proof.values import (
    ALL,
    Kind,
    Messages,
    NotUnderstood,
    Record,
    Unknown,
    is_plain,
    sources_of,
)
from rolloutpool_common.rendering.sentinel import SENTINEL
from rolloutpool_common.rendering.thread_clock import work_seconds
from rolloutpool_common.rendering.transformers_compat import parse_template, template_keys

SECONDS = 2.0
"""CPU time after which a proof is given up. It is there for templates whose steps are dear: `STEPS` is what bounds the
others, because a clock that is asked decides otherwise where Python collects garbage meanwhile, and then one process
proves what another does not."""
_WORDS = frozenset({Source.NEW, Source.TURN})
_HISTORY = frozenset({Source.EARLIER, Source.POSITION})
_SYSTEMS = frozenset({"system", "developer"})


@dataclass(frozen=True, slots=True)
class _Found:
    """Holds what one run found."""

    text: list[str | Unknown] | None
    reasons: tuple[Reason, ...]
    guard: frozenset[str] = frozenset()
    trimmed: frozenset[Word] = frozenset()
    raises: frozenset[Source] = ALL


def prove(
    environment: Environment,
    source: str,
    shape: TurnShape,
    *,
    kwargs: Mapping[str, Any],
    names: Mapping[str, str],
    whole: bool = True,
) -> Proof:
    """Proves what a template writes behind a turn of this shape.

    If not `whole`, nothing is said of independence where the parts are found and words had to be assumed.
    """
    deadline = work_seconds() + SECONDS
    variables = {"documents": None, "add_generation_prompt": True, **names, **kwargs}
    guard = Assumptions(active=True)
    guarded = _run(environment, source, shape, variables, guard, deadline)
    # Where words decide whether the template raises an error, only a render tells.
    parts = None if guarded.text is None or guarded.raises & _WORDS else _parts(guarded.text)
    free = guarded
    if guard.made and (whole or parts is None):
        free = _run(environment, source, shape, variables, Assumptions(active=False), deadline)
    elif guard.made:
        free = _Found(None, ())
    reads = ALL if free.text is None else sources_of(free.text)
    independent = not reads & _HISTORY
    reasons = () if parts is not None and independent else tuple(dict.fromkeys((*guarded.reasons, *free.reasons)))
    if parts is None:
        return Proof(None, frozenset(), frozenset(), independent, reads, reasons)
    return Proof(parts, guarded.guard, guarded.trimmed, independent, reads, reasons)


def _parts(text: list[str | Unknown]) -> tuple[str | Word | JsonWord, ...] | None:
    parts: list[str | Word | JsonWord] = []
    for part in text:
        if isinstance(part, str):
            parts.append(part)
        elif isinstance(part.key, Word | JsonWord):
            parts.append(part.key)
        else:
            return None
    return tuple(parts)


def _run(
    environment: Environment,
    source: str,
    shape: TurnShape,
    variables: dict[str, Any],
    guard: Assumptions,
    deadline: float,
) -> _Found:
    tools = Unknown(frozenset({Source.TOOLS}), Kind.LIST, ("tools",), truth=True) if shape.tools else None
    messages = _messages(shape)
    statements = Statements(environment, source, messages, guard, deadline)
    try:
        if not is_plain(variables) or any(map(_has_thoughts, shape.new)):
            raise NotUnderstood("variables that are no plain data, or a new message with thoughts")
        if (tree := parse_template(source)) is None:
            raise NotUnderstood("a template that cannot be parsed")
        state = statements.run(tree.body, {"messages": messages, "tools": tools, **variables})
    except Exception as error:  # whatever this analysis does not understand of a foreign template
        what = str(error) if isinstance(error, NotUnderstood) else type(error).__name__
        return _Found(None, (statements.reason(f"not understood: {what}"),))
    if state is None or state.out is None:
        return _Found(None, (statements.reason("the turn is never printed"),))
    reasons = tuple(part.reason for part in state.out if isinstance(part, Unknown) and part.reason)
    return _Found(state.out, reasons, frozenset(guard.literals), frozenset(guard.trimmed), statements.raises)


def _has_thoughts(message: NewMessage) -> bool:
    keys = {"role", *message.keys, *dict(message.bare)}
    return set(template_keys(keys)) != keys


def _messages(shape: TurnShape) -> Messages:
    if shape.system:
        first = Unknown(frozenset({Source.SYSTEM}), Kind.MAPPING, ("first",), role="system")
    else:
        role = Unknown(frozenset({Source.EARLIER}), Kind.TEXT, ("role",), truth=True, never=_SYSTEMS)
        first = Unknown(frozenset({Source.EARLIER}), Kind.MAPPING, ("first",), role=role)
    new = [_new_message(i, message) for i, message in enumerate(shape.new)]
    # Behind a system message somebody has spoken; templates that show tools in the first question cut both off.
    return Messages(0, (_turn(shape), *new), first, least=2 if shape.system else 1)


def _new_message(number: int, shape: NewMessage) -> Record:
    def word(key: str, *, table: bool = False) -> Unknown:
        if table:
            return Unknown(frozenset({Source.NEW}), Kind.MAPPING, TableWord(number, key), truth=True)
        return Unknown(frozenset({Source.NEW}), Kind.TEXT, Word(number, key))

    message = Record({key: word(key) for key in shape.keys if key != "role"} | dict(shape.bare))
    message["role"] = shape.role
    if shape.calls:
        message["tool_calls"] = [
            {
                "id": word(f"{i}.id"),
                "type": "function",
                "function": {"name": word(f"{i}.name"), "arguments": word(f"{i}.arguments", table=shape.parsed)},
            }
            for i in range(shape.calls)
        ]
    return message


def _turn(shape: TurnShape) -> Record:
    if shape.asked:
        return Record({"role": "user", "content": f"x{SENTINEL}"})
    own = frozenset({Source.TURN})
    turn = Record({key: Unknown(own, Kind.TEXT, ("turn", key)) for key in template_keys(shape.beside)})
    said = Unknown(own, Kind.TEXT, ("turn", "content"), truth=shape.says or None, ends=True)
    turn |= {"role": "assistant", "content": said if shape.says or shape.spoken or not shape.calls else ""}
    arguments = f'{{"{SENTINEL}": "{SENTINEL}"}}' if shape.as_text else {SENTINEL: SENTINEL}
    if shape.calls:
        turn["tool_calls"] = [
            {
                "id": Unknown(own, Kind.TEXT, ("call", i, "id")),
                "type": "function",
                "function": {"name": Unknown(own, Kind.TEXT, ("call", i, "name")), "arguments": arguments},
            }
            for i in range(shape.calls)
        ]
    return turn
