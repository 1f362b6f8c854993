"""Random conversations; each is a function of its seed.

They hold what has gone wrong somewhere: parallel calls, text beside a call, contents in parts, line ends of Windows,
composed and decomposed letters, private-use characters, typed control strings and pieces of them, switch words,
thinking in the turn's own words or beside them, late system messages, arguments as objects and as JSON text, ten
rounds.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.oracle.encoder import Mixed
from tests.oracle.endings import Ending, endings
from tests.oracle.referee import Appended, Message, Referee, Verdict

WORDS = (
    "the", "result", " is", "38", " ", "\n", "\n\n", "\t", "  ", "\r\n", "\r", "é", "e\u0301", "각",
    "\u1100\u1161\u11a8", "漢字", "🙂", "👩\u200d🚀", "\u202eabc", '{"a": 15}', "```json\n", "def f(x):\n    return x",
    "\\", "'", '"', "<", ">", "|", "<|", "|>", "</", "[", "]", "\u00a0", "\u200b", "1e9", "-0.0", "user",
    "assistant\n", "tool", "%s{}", "{{ x }}", "<b>", "&amp;", "\x00", "\x7f", "/no_think", "/think", "</think>",
    "<think>", "\ue000", "\ue0001\ue001", "\uf8ff", "?", "!", "null", "true",
)  # fmt: skip
_TESTED = re.compile(
    r"""(['"])([^'"\n]{1,24})\1\s+(?:not\s+)?in\b|(?:with|split|find|replace)\((['"])([^'"\n]{1,24})\3"""
)
TOOLS: list[Message] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"It {name}s.",
            "parameters": {
                "type": "object",
                "properties": {
                    "n": {"type": "number", "description": "One."},
                    "z": {"type": "string", "description": "Last."},
                },
                "required": ["z"],
            },
        },
    }
    for name in ("add", "look")
]


@dataclass(frozen=True)
class Case:
    """A turn with what follows it, how the policy ended it, and the verdict."""

    history: list[Message]
    new: list[Message]
    tools: list[Message] | None
    kwargs: dict[str, Any]
    verdict: Verdict
    kind: str
    """How the turn ended, or why there is no telling."""
    sampled: list[int]
    """All ids of the turn."""
    expected: list[int] | None
    """None where there is no oracle, or where a refusal is due."""


@dataclass
class Player:
    """A template with what its conversations need."""

    referee: Referee
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    needs_tools: bool = False
    by_hand: bool = False
    """Whether the ends of its turns are known by hand."""
    foreign: Sequence[str] = ()
    """Stop tokens beside the template's own."""

    def __post_init__(self) -> None:
        found = [
            (a or b).encode().decode("unicode_escape", "ignore") for _, a, _, b in _TESTED.findall(self.referee.source)
        ]
        self.words = (*WORDS, *dict.fromkeys(word for word in found if word.isascii()))


def conversation(player: Player, seed: str) -> Iterator[Case]:
    """The cases of one conversation. It ends where the template stops appending."""
    return Talk(player, Random(seed)).cases()


class Talk:
    """Draws the messages of one conversation, and what the policy samples."""

    def __init__(self, player: Player, random: Random) -> None:
        self.player, self.random = player, random
        self.referee = player.referee
        self.encoder = player.referee.encoder
        self.tools = TOOLS if random.random() < 0.35 or player.needs_tools else None
        self.repeats_ids = random.random() < 0.05
        """Policies that are small or stopped early call twice under the same id."""
        self.called = 0
        self.kwargs: dict[str, Any] = {"date_string": "26 Jul 2024", **player.kwargs}
        if "enable_thinking" not in self.kwargs and "enable_thinking" in player.referee.source:
            self.kwargs["enable_thinking"] = random.random() < 0.5

    def cases(self) -> Iterator[Case]:
        """The cases up to the last round, or to where the template stops appending."""
        history = self.opening()
        for _ in range(self.rounds()):
            case = self.case(history)
            yield case
            if not isinstance(case.verdict, Appended):
                return
            history = [*case.history, *case.new]

    def opening(self) -> list[Message]:
        """A question, and sometimes a system message in front of it."""
        history: list[Message] = [{"role": "user", "content": self.content()}]
        if self.random.random() < 0.4:
            history.insert(0, {"role": "system", "content": self.text()})
        return history

    def rounds(self) -> int:
        """How many turns the policy has."""
        return 10 if self.random.random() < 0.02 else 1 + self.random.randrange(3)

    def case(self, before: list[Message]) -> Case:
        """The policy's next turn, and what follows it."""
        new = self._new_messages()
        history = [*before, self._turn([m for m in new if m["role"] == "tool"])]
        verdict = self.referee.judge(history, new, self.tools, self.kwargs)
        words = self._sampled_words()
        if isinstance(verdict, Appended):
            every = list(
                endings(verdict, self.player.foreign, self.encoder.spelling.pattern, by_hand=self.player.by_hand)
            )
            if every:
                return self._ended(history, new, verdict, words, self.random.choice(every))
            kind = "the end of the turn is not known"
        else:
            kind = verdict.reason
        return Case(history, new, self.tools, self.kwargs, verdict, kind, words, None)

    def _ended(
        self, history: list[Message], new: list[Message], verdict: Appended, words: list[int], ending: Ending
    ) -> Case:
        said = self.encoder.spelling.undone(ending.sampled)
        sampled = [*words, *self.encoder.behind(said, "")]
        controls = [m for m in self.encoder.spelling.pattern.finditer(said) if m.end() == len(said)]
        kind = ending.kind
        try:
            expected: list[int] | None = self.encoder.behind(ending.rest, controls[-1].group() if controls else "")
        except Mixed as mixed:
            expected, kind = None, str(mixed)
        return Case(history, new, self.tools, self.kwargs, verdict, kind, sampled, expected)

    def _sampled_words(self) -> list[int]:
        """Ids in any form, which do not end with a control token: canonical text, odd splits, arbitrary ids."""
        pick = self.random
        kind = pick.random()
        if kind < 0.4:
            ids = self.encoder.plain(self.text())
        elif kind < 0.7:
            ids = [i for _ in range(pick.randrange(4)) for i in self.encoder.plain(pick.choice(self.player.words))]
        else:
            ids = [pick.randrange(self.encoder.size) for _ in range(1 + pick.randrange(6))]
        while ids and not self._ends_in_words(ids):
            ids.pop()
        return ids or (self.encoder.plain("x") if pick.random() < 0.9 else [])

    def _ends_in_words(self, ids: list[int]) -> bool:
        """Whether neither white space nor a control token ends them; the bytes of a space may be several ids."""
        text = self.encoder.decode(ids)
        last = self.encoder.decode([ids[-1]])
        return not self.encoder.is_control(ids[-1]) and not text[-1:].isspace() and bool(text) and bool(last)

    def text(self, most: int = 6) -> str:
        """Up to so many words and control strings, whole or not."""
        pick = self.random
        pieces = []
        for _ in range(pick.randrange(most)):
            kind = pick.random()
            if kind < 0.8 or not self.encoder.controls:
                pieces.append(pick.choice(self.player.words))
            else:
                control = pick.choice(self.encoder.controls)
                cut = pick.randrange(len(control) + 1)
                pieces.append(control if kind < 0.92 else control[:cut] if kind < 0.96 else control[cut:])
        return "".join(pieces)

    def content(self) -> Any:
        """A text, or parts of one."""
        if self.random.random() < 0.04:
            return [{"type": "text", "text": self.text()} for _ in range(1 + self.random.randrange(2))]
        return self.text()

    def _result(self) -> Any:
        return {"r": self.text(), "n": 38} if self.random.random() < 0.05 else self.content()

    def _new_messages(self) -> list[Message]:
        pick = self.random
        kind = pick.random()
        if kind < 0.04:
            return [{"role": "system", "content": self.text()}]
        results = 0 if kind < 0.4 else 1 if kind < 0.8 else pick.randrange(2, 4)
        first = 0 if self.repeats_ids else self.called
        self.called += results
        new: list[Message] = [
            {
                "role": "tool",
                "name": pick.choice(("add", "look")),
                "tool_call_id": f"call{first + i:05d}",
                "content": self._result(),
            }
            for i in range(results)
        ]
        if not results or pick.random() < 0.1:
            new.append({"role": "user", "content": self.content()})
        return new

    def _turn(self, results: Sequence[Message]) -> Message:
        """The policy's turn as it was parsed: an answer, or a call for each result."""
        pick = self.random
        said = self.text(4) if not results or pick.random() < 0.25 else ""
        if results:  # where it is written behind the call, a stop in it would look like the turn's own
            said = self.encoder.spelling.pattern.sub(lambda m: m.group() if "think" in m.group() else "", said)
        turn: Message = {"role": "assistant", "content": said}
        if pick.random() < 0.15:
            turn["reasoning_content"] = self.text(4)
        if results:
            as_text = pick.random() < 0.5
            turn["tool_calls"] = [
                {
                    "id": m["tool_call_id"],
                    "type": "function",
                    "function": {"name": m["name"], "arguments": self._arguments(as_text)},
                }
                for m in results
            ]
        return turn

    def _arguments(self, as_text: bool) -> Any:
        value: dict[str, Any] = {"n": self.random.choice((1, 2.5, 10))} if self.random.random() < 0.3 else {}
        value["z"] = self.text(3)
        return json.dumps(value, ensure_ascii=self.random.random() < 0.5) if as_text else value
