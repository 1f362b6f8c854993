"""Which line of talk a call continues, from stored things alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutpool_common.capabilities.harness.given_calls import given_id
from rolloutpool_worker.capabilities.harness.lines import Lines, TalkLine, shape_of

Message = dict[str, Any]


def said(role: str, text: str | None, calls: Sequence[tuple[str, Any]] = (), ids: str = "own") -> Message:
    made = [
        {"id": f"{ids}{place}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for place, (name, arguments) in enumerate(calls)
    ]
    return {"role": role, "content": text, "tool_calls": made or None, "tool_call_id": None}


def given_back(message: Message, n: int) -> Message:
    """A reply as a program gives it back: with the ids that it was given."""
    calls = [{**call, "id": given_id(n, place)} for place, call in enumerate(message["tool_calls"] or ())]
    return {**message, "tool_calls": calls or None}


def result_of(n: int, text: str = "ok") -> Message:
    return {"role": "tool", "content": text, "tool_calls": None, "tool_call_id": given_id(n, 0)}


USER = said("user", "hello")
SHELL = said("assistant", "I look.", [("shell", '{"command": "ls"}')])


def begun(reply: Message = SHELL) -> tuple[Lines, TalkLine]:
    """A session with one line that has one reply."""
    lines = Lines()
    line = lines.find(1, 0, [USER], "t").line
    lines.answered(line, 1, 1, reply)
    return lines, line


@pytest.mark.parametrize(
    ("sampled", "back"),
    [
        ('{"x": 1.0}', '{"x":1}'),
        ('{"x": 1e3, "y": -0.0}', '{"y":0,"x":1000}'),
        ('{"x": 12345678901234567890}', '{"x":12345678901234567000}'),
        ({"x": 1}, '{"x": 1.0}'),
        ("", "{}"),
        (" ", '{"arguments":" "}'),
        ("[1, 2]", '{"arguments":"[1, 2]"}'),
        ('{"command": "ls', '{"arguments":"{\\"command\\": \\"ls"}'),
        ('{"arguments": "ls"}', '{"arguments":"ls"}'),
        ("NaN", '{"arguments":"NaN"}'),
        ('{"x": "\\ud800"}', '{"arguments":"{\\"x\\": \\"\\\\ud800\\"}"}'),
        ("[" * 100_000, "[" * 100_000),
    ],
)
def test_arguments_are_compared_by_what_they_say(sampled: Any, back: str) -> None:
    assert shape_of(said("assistant", None, [("f", sampled)])) == shape_of(said("assistant", None, [("f", back)]))


@pytest.mark.parametrize(
    ("one", "other"), [('{"x": 1}', '{"x": 2}'), ('{"x": true}', '{"x": 1}'), ('{"x": "1"}', '{"x": 1}'), ("a", "b")]
)
def test_arguments_that_differ_differ(one: str, other: str) -> None:
    assert shape_of(said("assistant", None, [("f", one)])) != shape_of(said("assistant", None, [("f", other)]))


def test_a_reply_that_comes_back_continues_its_line_with_the_policy_s_ids() -> None:
    lines, line = begun()
    found = lines.find(2, 1, [USER, given_back(SHELL, 1), result_of(1)], "t")
    assert (found.line, found.begins) == (line, False)
    assert [one["tool_call_id"] for one in found.new] == ["own0"]


@pytest.mark.parametrize(
    ("history", "tools", "replied"),
    [
        ([USER, said("assistant", "Other."), USER], "t", 1),
        ([USER, SHELL, result_of(1)], "other", 1),
        ([USER, SHELL, result_of(1)], "t", 0),
        ([USER, SHELL], "t", 1),
        ([USER, SHELL, result_of(1), said("assistant", "Mine."), USER], "t", 1),
    ],
    ids=["another reply", "other tools", "before the reply", "nothing new", "words of its own"],
)
def test_what_does_not_go_on_begins_a_line(history: list[Message], tools: str, replied: int) -> None:
    lines, _ = begun()
    found = lines.find(2, replied, history, tools)
    assert (found.begins, found.line.number) == (True, 2)


def test_an_id_of_a_reply_that_was_not_there_yet_stays_as_it_is() -> None:
    """A program may name any id. When the calls are read again, the reply is there already."""
    made_up = [USER, said("assistant", "Mine.", [("shell", "{}")], "x"), result_of(1)]
    first = Lines()
    line = first.find(1, 0, [USER], "t").line
    before = first.find(2, 0, made_up, "t").new
    again = Lines()
    line = again.find(1, 0, [USER], "t").line
    again.answered(line, 1, 1, SHELL)
    assert again.find(2, 0, made_up, "t").new == before
    assert before[-1]["tool_call_id"] == given_id(1, 0)


def test_of_equal_lines_the_one_is_meant_whose_ids_are_named() -> None:
    lines = Lines()
    twins = [lines.find(n, 0, [USER], "t").line for n in (1, 2, 3)]
    for n, line in enumerate(twins, 1):
        lines.answered(line, n, n, SHELL)
    found = lines.find(4, 3, [USER, given_back(SHELL, 2), result_of(2)], "t")
    assert found.line is twins[1]


def test_of_equal_lines_the_one_is_meant_whose_reply_is_named() -> None:
    lines = Lines()
    twins = [lines.find(n, 0, [USER], "t").line for n in (1, 2, 3)]
    for n, line in enumerate(twins, 1):
        lines.answered(line, n, n, said("assistant", "Done."))
    history = [USER, said("assistant", "Done."), USER]
    assert lines.find(4, 3, history, "t", after=2).line is twins[1]
    # Asked once more from there, it is a line that leaves this one, although others have equal texts.
    again = lines.find(5, 3, history, "t", after=2)
    assert (again.begins, again.line.parent) == (True, twins[1])


@dataclass(frozen=True)
class Asked:
    """A call as it is stored."""

    n: int
    replied: int
    messages: list[Message]
    tools: str


class World:
    """Programs that call at once, drop replies, compact and repeat; replies come in any order."""

    def __init__(self) -> None:
        self.lines = Lines()
        self.calls: list[Asked] = []
        self.open: dict[int, TalkLine] = {}
        self.replies: dict[int, tuple[int, Message]] = {}

    def call(self, messages: list[Message], tools: str) -> None:
        asked = Asked(len(self.calls) + 1, len(self.replies), messages, tools)
        self.calls.append(asked)
        found = self.lines.find(asked.n, asked.replied, messages, tools)
        assert found.begins or all(one["role"] != "assistant" for one in found.new)
        self.open[asked.n] = found.line

    def reply(self, n: int, message: Message) -> None:
        place = len(self.replies) + 1
        self.replies[n] = place, message
        self.lines.answered(self.open.pop(n), n, place, message)


REPLIES = (SHELL, said("assistant", "Done."), {**said("assistant", ""), "reasoning_content": "hm"})


@given(st.data())
def test_reading_the_calls_again_finds_the_same_lines(data: st.DataObject) -> None:
    """A worker that takes over reads all calls, with the replies that there are now."""
    world = World()
    for _ in range(data.draw(st.integers(1, 12))):
        replies = bool(world.open) and data.draw(st.booleans())
        if replies:
            world.reply(data.draw(st.sampled_from(sorted(world.open))), data.draw(st.sampled_from(REPLIES)))
            continue
        known = [
            [*asked.messages, given_back(world.replies[asked.n][1], asked.n), result_of(asked.n)]
            for asked in world.calls
            if asked.n in world.replies
        ]
        history = data.draw(st.sampled_from([[USER], [said("system", "child"), USER], *known]))
        history = history[data.draw(st.sampled_from([0, 0, 1])) :] or [USER]
        if data.draw(st.booleans()):
            own: list[list[Message]] = [[USER], [result_of(9)], [USER, said("assistant", "Mine."), USER]]
            history = [*history, *data.draw(st.sampled_from(own))]
        world.call(history, data.draw(st.sampled_from(["t", "t", "other"])))
    again, late = Lines(), []
    for asked in world.calls:
        line = again.find(asked.n, asked.replied, asked.messages, asked.tools).line
        if asked.n not in world.replies:
            late.append(line)
            continue
        place, message = world.replies[asked.n]
        again.answered(line, asked.n, place, message)
    assert [_seen(line) for line in again.all] == [_seen(line) for line in world.lines.all]


def _seen(line: TalkLine) -> Mapping[str, Any]:
    parent = None if line.parent is None else line.parent.number
    return {
        "number": line.number,
        "real": line.real,
        "first": line.first,
        "parent": parent,
        "calls": line.calls,
        "shapes": line.shapes,
        "replies": line.replies,
    }
