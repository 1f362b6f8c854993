"""The constructs that `check-tokenizer` tries: what rollouts do, and what templates of strangers broke on.

A construct is a list of cases, the smallest one first. A case is a conversation: its history, a turn of the policy, how
that turn's end was sampled, and the messages that follow. Nothing here is about one template.

Every kind of text has a word of its own (`MARK`, `SYSTEM_WORD` …), so that a render shows where it was written.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any

MARK = "quail"
"""What the policy says last, and the argument of its calls."""
SYSTEM_WORD = "zebra"
TOOL_WORD = "pangolin"
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "weigh",
            "description": f"Weigh a {TOOL_WORD}.",
            "parameters": {
                "type": "object",
                "properties": {"animal": {"type": "string", "description": "Which."}},
                "required": ["animal"],
            },
        },
    }
]
_THOUGHT = "<think>\nmarmot\n</think>\n\n"
_ODD = ("", " 38 \n", "\n\n{}", "naïve 漢字 🙂", '{"a": [1, null]}')
"""What tools may answer."""
_MOST_WORDS = 6
"""Switch words of a template that are tried; each costs two cases."""


class Met(StrEnum):
    """How many rollouts meet a construct."""

    ALWAYS = "always"
    """Every rollout of its kind (with tools, without)."""
    OFTEN = "often"
    """Many: the policy or the prompt decides."""
    RARELY = "rarely"
    """Only those that ask for it; a refusal does not change the exit code."""


class SampledEnd(StrEnum):
    """How the end of the policy's turn was sampled."""

    WHOLE = "stop sampled"
    WITHHELD = "stop withheld"
    CUT = "cut short"
    OTHER = "another stop sampled"
    SPACE = "white space sampled after the stop"


@dataclass(frozen=True, slots=True)
class ConstructCase:
    """One conversation."""

    history: tuple[dict[str, Any], ...]
    """Up to the policy's turn."""
    new: tuple[dict[str, Any], ...] = ()
    """What follows the turn. Empty where only the prompt of `history` is rendered."""
    calls: int = 0
    """How many calls the turn makes."""
    said: str = ""
    """What the turn says beside its calls, or around `MARK`."""
    tools: bool = False
    """Whether tools are shown."""
    end: SampledEnd = SampledEnd.WHOLE
    template_kwargs: dict[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The case in one line."""
        roles = [_role(message) for message in self.history]
        if self.new:
            turn = f"{self.calls} call{'s' * (self.calls > 1)}" if self.calls else "answer"
            roles += [f"[{turn}, {self.end.value}]", *(_role(message) for message in self.new)]
        notes = ["tools shown"] * self.tools + [f"{key}={value}" for key, value in self.template_kwargs.items()]
        return " > ".join(roles) + (f" ({', '.join(notes)})" if notes else "")


@dataclass(frozen=True, slots=True)
class Construct:
    """Holds what is tried, and who meets it."""

    name: str
    met: Met
    needs_tools: bool
    """Whether only rollouts with tools meet it."""
    cases: tuple[ConstructCase, ...]


def constructs(words: Sequence[str]) -> list[Construct]:
    """Lists all constructs."""
    return [*_talk(words), *_calls()]


def _talk(words: Sequence[str]) -> list[Construct]:
    once, twice = (USER,), (USER, saying("ibex"), USER)
    switched = [text for word in words[:_MOST_WORDS] for text in (f"{word} {SYSTEM_WORD}", f"{SYSTEM_WORD} {word}")]
    # A user message follows the turn.
    asked = partial(ConstructCase, new=(NEXT,))

    def construct(name: str, met: Met, *cases: ConstructCase) -> Construct:
        return Construct(name, met, False, cases)

    return [
        construct("first prompt", Met.ALWAYS, ConstructCase(once), ConstructCase(twice)),
        construct("user message", Met.ALWAYS, *map(asked, (once, twice, (*twice, saying("ibex"), USER)))),
        construct(
            "system message", Met.OFTEN, ConstructCase((SYSTEM, *once)), asked((SYSTEM, *once)), asked((SYSTEM, *twice))
        ),
        construct(
            "switch words of the template",
            Met.OFTEN,
            *(asked(({**USER, "content": text},)) for text in switched),
            *(asked(({**SYSTEM, "content": text}, USER)) for text in switched),
        ),
        construct(
            "thinking",
            Met.OFTEN,
            asked(once, said=_THOUGHT),
            asked((USER, {**saying("ibex"), "reasoning_content": "marmot"}, USER)),
            *(asked(once, template_kwargs={"enable_thinking": on}) for on in (False, True)),
        ),
        construct(
            "stop withheld after an answer",
            Met.ALWAYS,
            *(asked(past, end=SampledEnd.WITHHELD) for past in (once, twice)),
        ),
        construct("other stop ids", Met.OFTEN, asked(once, end=SampledEnd.OTHER)),
        construct("white space after the stop", Met.OFTEN, asked(once, end=SampledEnd.SPACE)),
        construct(
            "content in parts",
            Met.RARELY,
            *(
                ConstructCase(({**USER, "content": parts},), new)
                for parts in (_parts("giraffe"), _parts("giraffe", "stork"))
                for new in ((), ({**NEXT, "content": parts},))
            ),
        ),
        construct("late system message", Met.RARELY, ConstructCase(once, ({"role": "system", "content": "heron"},))),
    ]


def _calls() -> list[Construct]:
    once = (USER,)
    one, two = (result(0),), (result(0), result(1))
    shown = partial(ConstructCase, tools=True)
    called = partial(shown, calls=1)

    def construct(name: str, met: Met, *cases: ConstructCase) -> Construct:
        return Construct(name, met, True, cases)

    return [
        construct("tools in the first prompt", Met.ALWAYS, shown(once), shown((SYSTEM, *once))),
        construct("tool result", Met.ALWAYS, called(once, one)),
        construct("tool rounds", Met.ALWAYS, *(called(_rounds(n), one) for n in (1, 2, 3))),
        construct(
            "answer after a tool round",
            Met.ALWAYS,
            shown(_rounds(1), (NEXT,)),
            called((*_rounds(1), saying("ibex"), USER), one),
        ),
        construct(
            "parallel calls",
            Met.OFTEN,
            shown(once, two, calls=2),
            shown(_rounds(1), two, calls=2),
            called(_rounds(1, calls=2), one),
        ),
        construct("text beside a call", Met.OFTEN, called(once, one, said="ibex")),
        construct(
            "thinking before a call",
            Met.OFTEN,
            called(once, one, said=_THOUGHT),
            *(called(once, one, template_kwargs={"enable_thinking": on}) for on in (False, True)),
        ),
        construct("system message and tools", Met.OFTEN, called((SYSTEM, *once), one), shown((SYSTEM, *once), (NEXT,))),
        construct("tools not shown", Met.OFTEN, *(ConstructCase(past, one, calls=1) for past in (once, _rounds(1)))),
        construct(
            "results of any text", Met.OFTEN, *(called(once, ({**result(0), "content": text},)) for text in _ODD)
        ),
        construct(
            "stop withheld after a call",
            Met.ALWAYS,
            *(called(past, one, end=SampledEnd.WITHHELD) for past in (once, _rounds(1))),
        ),
        construct("call cut short", Met.OFTEN, called(once, one, end=SampledEnd.CUT)),
        construct("other stop ids after a call", Met.OFTEN, called(once, one, end=SampledEnd.OTHER)),
        construct("result, then user message", Met.RARELY, called(once, (*one, NEXT))),
    ]


USER: dict[str, Any] = {"role": "user", "content": "giraffe"}
NEXT: dict[str, Any] = {"role": "user", "content": "heron"}
SYSTEM: dict[str, Any] = {"role": "system", "content": SYSTEM_WORD}


def _parts(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text} for text in texts]


def saying(text: str) -> dict[str, Any]:
    """An answer of the policy."""
    return {"role": "assistant", "content": text}


def call_id(number: int) -> str:
    """An id that every template takes."""
    return f"call{number:05d}"


def result(number: int) -> dict[str, Any]:
    """The result of the call `call_id(number)`."""
    return {"role": "tool", "name": "weigh", "tool_call_id": call_id(number), "content": f"ostrich{number}"}


def _rounds(number: int, *, calls: int = 1) -> tuple[dict[str, Any], ...]:
    """A question, and so many rounds of calls and results."""
    found: list[dict[str, Any]] = [USER]
    for i in range(number):
        ids = [f"past{i:02d}{j:03d}" for j in range(calls)]
        found.append(calling([(made, "walrus") for made in ids]))
        found += [{"role": "tool", "name": "weigh", "tool_call_id": made, "content": "lemur"} for made in ids]
    return tuple(found)


def calling(calls: Sequence[tuple[str, str]], said: str = "") -> dict[str, Any]:
    """A turn of the policy with calls."""
    made = [
        {"id": made, "type": "function", "function": {"name": "weigh", "arguments": {"animal": animal}}}
        for made, animal in calls
    ]
    return {"role": "assistant", "content": said, "tool_calls": made}


def _role(message: dict[str, Any]) -> str:
    if message.get("tool_calls"):
        return f"{len(message['tool_calls'])} past call{'s' * (len(message['tool_calls']) > 1)}"
    content = message["content"]
    if isinstance(content, list):
        return f"{message['role']} in {len(content)} part{'s' * (len(content) > 1)}"
    plain = isinstance(content, str) and content.isascii() and content.isalnum()
    return str(message["role"]) + ("" if plain else f" {content!r}")
