"""The constructs that `check-tokenizer` tries: what rollouts do, and what templates of strangers broke on.

A construct is a list of cases, the smallest one first. A case is a conversation: its history, a turn of the policy, how
that turn's end was sampled, and the messages that follow. Nothing here is about one template.

Every kind of text has a word of its own (`MARK`, `SYSTEM_WORD` …), so that a render shows where it was written.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
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
    thought = "<think>\nmarmot\n</think>\n\n"
    return [
        Construct("first prompt", Met.ALWAYS, False, (ConstructCase(once), ConstructCase(twice))),
        Construct(
            "user message",
            Met.ALWAYS,
            False,
            tuple(ConstructCase(past, (NEXT,)) for past in (once, twice, (*twice, saying("ibex"), USER))),
        ),
        Construct(
            "system message",
            Met.OFTEN,
            False,
            (
                ConstructCase((SYSTEM, *once)),
                ConstructCase((SYSTEM, *once), (NEXT,)),
                ConstructCase((SYSTEM, *twice), (NEXT,)),
            ),
        ),
        Construct(
            "switch words of the template",
            Met.OFTEN,
            False,
            (
                *(ConstructCase(({**USER, "content": text},), (NEXT,)) for text in switched),
                *(ConstructCase(({**SYSTEM, "content": text}, USER), (NEXT,)) for text in switched),
            ),
        ),
        Construct(
            "thinking",
            Met.OFTEN,
            False,
            (
                ConstructCase(once, (NEXT,), said=thought),
                ConstructCase((USER, {**saying("ibex"), "reasoning_content": "marmot"}, USER), (NEXT,)),
                ConstructCase(once, (NEXT,), template_kwargs={"enable_thinking": False}),
                ConstructCase(once, (NEXT,), template_kwargs={"enable_thinking": True}),
            ),
        ),
        Construct(
            "stop withheld after an answer",
            Met.ALWAYS,
            False,
            tuple(ConstructCase(past, (NEXT,), end=SampledEnd.WITHHELD) for past in (once, twice)),
        ),
        Construct("other stop ids", Met.OFTEN, False, (ConstructCase(once, (NEXT,), end=SampledEnd.OTHER),)),
        Construct(
            "white space after the stop", Met.OFTEN, False, (ConstructCase(once, (NEXT,), end=SampledEnd.SPACE),)
        ),
        Construct(
            "content in parts",
            Met.RARELY,
            False,
            tuple(
                ConstructCase(({**USER, "content": parts},), new)
                for parts in (_parts("giraffe"), _parts("giraffe", "stork"))
                for new in ((), ({**NEXT, "content": parts},))
            ),
        ),
        Construct(
            "late system message", Met.RARELY, False, (ConstructCase(once, ({"role": "system", "content": "heron"},)),)
        ),
    ]


def _calls() -> list[Construct]:
    once = (USER,)
    one, two = (result(0),), (result(0), result(1))
    odd = ("", " 38 \n", "\n\n{}", "naïve 漢字 🙂", '{"a": [1, null]}')
    return [
        Construct(
            "tools in the first prompt",
            Met.ALWAYS,
            True,
            (ConstructCase(once, tools=True), ConstructCase((SYSTEM, *once), tools=True)),
        ),
        Construct("tool result", Met.ALWAYS, True, (ConstructCase(once, one, calls=1, tools=True),)),
        Construct(
            "tool rounds",
            Met.ALWAYS,
            True,
            tuple(ConstructCase(_rounds(n), one, calls=1, tools=True) for n in (1, 2, 3)),
        ),
        Construct(
            "answer after a tool round",
            Met.ALWAYS,
            True,
            (
                ConstructCase(_rounds(1), (NEXT,), tools=True),
                ConstructCase((*_rounds(1), saying("ibex"), USER), one, calls=1, tools=True),
            ),
        ),
        Construct(
            "parallel calls",
            Met.OFTEN,
            True,
            (
                ConstructCase(once, two, calls=2, tools=True),
                ConstructCase(_rounds(1), two, calls=2, tools=True),
                ConstructCase(_rounds(1, calls=2), one, calls=1, tools=True),
            ),
        ),
        Construct("text beside a call", Met.OFTEN, True, (ConstructCase(once, one, calls=1, said="ibex", tools=True),)),
        Construct(
            "thinking before a call",
            Met.OFTEN,
            True,
            (
                ConstructCase(once, one, calls=1, said="<think>\nmarmot\n</think>\n\n", tools=True),
                ConstructCase(once, one, calls=1, tools=True, template_kwargs={"enable_thinking": False}),
                ConstructCase(once, one, calls=1, tools=True, template_kwargs={"enable_thinking": True}),
            ),
        ),
        Construct(
            "system message and tools",
            Met.OFTEN,
            True,
            (
                ConstructCase((SYSTEM, *once), one, calls=1, tools=True),
                ConstructCase((SYSTEM, *once), (NEXT,), tools=True),
            ),
        ),
        Construct(
            "tools not shown",
            Met.OFTEN,
            True,
            (ConstructCase(once, one, calls=1), ConstructCase(_rounds(1), one, calls=1)),
        ),
        Construct(
            "results of any text",
            Met.OFTEN,
            True,
            tuple(ConstructCase(once, ({**result(0), "content": text},), calls=1, tools=True) for text in odd),
        ),
        Construct(
            "stop withheld after a call",
            Met.ALWAYS,
            True,
            tuple(
                ConstructCase(past, one, calls=1, tools=True, end=SampledEnd.WITHHELD) for past in (once, _rounds(1))
            ),
        ),
        Construct(
            "call cut short", Met.OFTEN, True, (ConstructCase(once, one, calls=1, tools=True, end=SampledEnd.CUT),)
        ),
        Construct(
            "other stop ids after a call",
            Met.OFTEN,
            True,
            (ConstructCase(once, one, calls=1, tools=True, end=SampledEnd.OTHER),),
        ),
        Construct(
            "result, then user message", Met.RARELY, True, (ConstructCase(once, (*one, NEXT), calls=1, tools=True),)
        ),
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
