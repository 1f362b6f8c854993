"""Says what the template itself writes after a turn: a full render by transformers, cut behind what the policy sampled.

Nothing of the pool's renderer is used here (no deltas, no marks, no normal form, no codec), because a check that shares
a renderer with what it checks finds nothing.

1. The whole conversation, with the real turn in it, goes through `apply_chat_template`. The turn says `MARK`.
2. All that follows the last `MARK` is the end of the turn, the new messages and the generation prompt. The policy has
   sampled some of the end itself; where that ends is the **cut**.
3. What a delta must be is the text behind the cut, and its ids are the last ids of the whole text.

Example: `…quail<|im_end|>⏎<|im_start|>tool⏎ostrich0<|im_end|>⏎<|im_start|>assistant⏎`. With the stop sampled, the cut
is behind the first `<|im_end|>`.

Some templates move the tools or the system message to the end of a longer conversation. The policy saw them in its
first prompt, and an appended delta cannot move them, so they are left out of the render to compare with. Content in
parts is one text here, because that is what it says, however a template would print a list.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from transformers import PreTrainedTokenizerBase

from rolloutpool_common.rendering.checks.constructs import (
    MARK,
    SYSTEM_WORD,
    TOOL_WORD,
    TOOLS,
    ConstructCase,
    SampledEnd,
    call_id,
    calling,
)

Messages = Sequence[Mapping[str, Any]]

_REASON_LIMIT = 300
_SHOWN = 60
"""Characters of what was sampled that are shown."""


class NoOracle(Exception):
    """The template's own render tells nothing about this case; the text says why."""


@dataclass(frozen=True, slots=True)
class Expected:
    """Holds what a case must give."""

    history: list[dict[str, Any]]
    """All messages up to the policy's turn, that turn included; for a first prompt, all messages."""
    sampled: str
    """The last characters that the policy sampled."""
    sampled_ids: list[int]
    text: str
    """What the template writes behind them; for a first prompt, all of it."""
    ids: list[int] | None
    """The ids of `text` in the whole render; None where an id lies on both sides of the cut."""
    least: int | None = None
    """How many of the last characters of `text` must be written; None for all. A cut call leaves the rest open."""
    lost: str = ""
    """What the template does instead of appending the new messages; then nothing but a refusal is right."""


@dataclass(frozen=True, slots=True)
class _Whole:
    text: str
    history: list[dict[str, Any]]
    at: int
    """Where what the policy said is over."""
    bound: int
    """Where the first new message says its first word."""
    lost: str
    start: int
    """Where the policy's turn begins."""


def _with_text(message: Mapping[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    if not isinstance(content, list):
        return dict(message)
    return {**message, "content": "".join(part["text"] for part in content)}


class FullRender:
    """Renders whole conversations as a trainer does that knows nothing of the pool."""

    def __init__(self, chat: PreTrainedTokenizerBase, stops: Sequence[str]) -> None:
        """Takes the tokenizer of transformers, and the strings of the tokens that policies of its family stop at."""
        self._chat = chat
        self._stops = sorted(stops, key=len, reverse=True)
        self._added = [text for text in chat.get_added_vocab() if text.strip()]

    def text(
        self,
        messages: Messages,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        generation_prompt: bool = True,
    ) -> str:
        """Renders messages as they are; raises NoOracle where the template raises."""
        try:
            return str(
                self._chat.apply_chat_template(
                    [_with_text(message) for message in messages],
                    tools=[dict(tool) for tool in tools] if tools else None,
                    add_generation_prompt=generation_prompt,
                    tokenize=False,
                    **(template_kwargs or {}),
                )
            )
        except Exception as error:  # a template is foreign code and may raise anything
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:_REASON_LIMIT]
            raise NoOracle(f"the template raises on the whole conversation: {reason}") from None

    def ids(self, text: str) -> list[int]:
        """Encodes a text as transformers does, without adding special tokens."""
        return [int(i) for i in self._chat.encode(text, add_special_tokens=False)]

    def expected(self, case: ConstructCase) -> Expected:
        """Finds out what a case must give."""
        tools = TOOLS if case.tools else None
        if not case.new:
            text = self.text(case.history, tools=tools, template_kwargs=case.template_kwargs)
            return Expected(list(case.history), "", [], text, self.ids(text))
        whole = self._whole(case, case.history, tools)
        whole = self._without_what_moves(case, whole, tools)
        behind = whole.text[whole.at :]
        stop = self._stop(behind[: whole.bound])
        if stop is None and case.calls:
            return self._without_known_stop(case, whole)
        if case.end is SampledEnd.OTHER:
            return self._other_stop(case, whole, stop)
        if case.end is SampledEnd.CUT or (case.end is SampledEnd.WITHHELD and not case.calls):
            return self._unstopped(case, whole, stop)
        if stop is None:
            if case.end is SampledEnd.WHOLE and not case.calls:  # the end has no stop, so there is none to sample
                return self._cut(whole, whole.at, whole.at)
            raise NoOracle("the template writes no stop token there")
        if case.end is SampledEnd.WITHHELD:
            return self._cut(whole, whole.at + stop[0], whole.at + stop[0])
        cut = stop[1]
        if case.end is SampledEnd.SPACE:
            rest = behind[cut : whole.bound]
            space = len(rest) - len(rest.lstrip())
            if not space:
                raise NoOracle("the template writes no white space after the stop")
            cut += space
        return self._cut(whole, whole.at + cut, whole.at + cut)

    def _unstopped(self, case: ConstructCase, whole: _Whole, stop: tuple[int, int] | None) -> Expected:
        # What closes the call itself is the policy's to spell; only the stop is written for it.
        begin = stop[0] if case.calls and stop is not None else 0
        return self._cut(whole, whole.at, whole.at + begin)

    def _without_known_stop(self, case: ConstructCase, whole: _Whole) -> Expected:
        """A call whose end has no stop token that is known: its last control string stands for one."""
        end = self._end(case, whole)
        behind = whole.text[whole.at :]
        controls = [text for text in self._added if text in behind[: end or 0]]
        if end is None or not controls or case.end in (SampledEnd.OTHER, SampledEnd.SPACE):
            raise NoOracle("the template writes no stop token there")
        last = max((behind.rfind(text, 0, end), len(text)) for text in controls)
        if case.end is SampledEnd.WHOLE:
            return self._cut(whole, whole.at + sum(last), whole.at + sum(last))
        sampled = whole.at + (last[0] if case.end is SampledEnd.WITHHELD else 0)
        found = self._cut(whole, sampled, sampled)
        return replace(found, ids=None, least=len(behind) - whole.bound)

    def _other_stop(self, case: ConstructCase, whole: _Whole, stop: tuple[int, int] | None) -> Expected:
        behind = whole.text[whole.at :]
        end = self._end(case, whole)
        other = next((text for text in sorted(self._stops) if text not in behind[: whole.bound]), None)
        if other is None:
            raise NoOracle("the tokenizer has no other stop id")
        if stop is None or end is None or stop[1] > end:
            raise NoOracle("the template writes no stop token there")
        found = self._cut(whole, whole.at + (stop[0] if case.calls else 0), whole.at + stop[1])
        return replace(
            found,
            sampled=found.sampled + other,
            sampled_ids=[*found.sampled_ids, *self.ids(other)],
        )

    def _cut(self, whole: _Whole, sampled: int, begin: int) -> Expected:
        """Returns what must be written from `begin` on, where the policy sampled up to `sampled`."""
        everything, before = self.ids(whole.text), self.ids(whole.text[:begin])
        # An id on both sides of the cut is none that could be sampled and continued; then the texts are compared.
        clean = everything[: len(before)] == before
        said = whole.text[whole.start : sampled]
        return Expected(
            whole.history,
            said[-_SHOWN:],
            self.ids(said),
            whole.text[begin:],
            everything[len(before) :] if clean else None,
            lost=whole.lost,
        )

    def _stop(self, text: str) -> tuple[int, int] | None:
        """Start and end of the first stop token in a text."""
        places = [(at, -len(stop)) for stop in self._stops if (at := text.find(stop)) >= 0]
        return (min(places)[0], min(places)[0] - min(places)[1]) if places else None

    def _end(self, case: ConstructCase, whole: _Whole) -> int | None:
        """How much of the text behind the turn ends that turn, also where nothing follows it."""
        alone = self.text(
            whole.history,
            tools=TOOLS if case.tools else None,
            template_kwargs=case.template_kwargs,
            generation_prompt=False,
        )
        behind = alone[alone.rfind(MARK) + len(MARK) :]
        return len(behind) if MARK in alone and whole.text[whole.at :].startswith(behind) else None

    def _whole(self, case: ConstructCase, history: Messages, tools: Sequence[Mapping[str, Any]] | None) -> _Whole:
        """Renders the whole conversation in the first form in which the template shows the policy's turn."""
        reason = "the template does not show the policy's turn"
        found: _Whole | None = None
        for turn, as_text in _turns(case):
            past = [*(with_text_arguments(m) if as_text else dict(m) for m in history), turn]
            try:
                text = self.text([*past, *case.new], tools=tools, template_kwargs=case.template_kwargs)
                plain = [{**message, "content": f"{_PLAIN}{i}e"} for i, message in enumerate(case.new)]
                probe = self.text([*past, *plain], tools=tools, template_kwargs=case.template_kwargs)
                prompt = self.text(past[:-1], tools=tools, template_kwargs=case.template_kwargs)
            except NoOracle as error:
                reason = str(error)
                continue
            at = text.rfind(MARK)
            if at < 0:
                continue
            at += len(MARK)
            lost = _lost(probe, len(plain))
            first = probe.find(_PLAIN, probe.rfind(MARK))
            bound = first - probe.rfind(MARK) - len(MARK) if first >= 0 else len(text) - at
            start = len(prompt) if text.startswith(prompt) else text.find(MARK)
            found = _Whole(text, past, at, bound, lost, start)
            break
        if found is None:
            raise NoOracle(reason)
        return found

    def _without_what_moves(
        self, case: ConstructCase, whole: _Whole, tools: Sequence[Mapping[str, Any]] | None
    ) -> _Whole:
        """Renders again without the tools and the system message, where the template moves them behind the turn."""
        prompt = self.text(case.history, tools=tools, template_kwargs=case.template_kwargs)

        def moves(word: str) -> bool:
            return word in prompt and word not in whole.text[: whole.at] and word in whole.text[whole.at :]

        system, history = case.history[:1], case.history
        if moves(TOOL_WORD):
            tools = None
        if moves(SYSTEM_WORD) and system and system[0]["role"] == "system":
            history = case.history[1:]
        if tools is (TOOLS if case.tools else None) and history is case.history:
            return whole
        found = self._whole(case, history, tools)
        return replace(found, history=whole.history)


_PLAIN = "ostrichX"


def _turns(case: ConstructCase) -> Iterator[tuple[dict[str, Any], bool]]:
    """The policy's turn in all forms that templates read, and whether arguments are text in it."""
    if not case.calls:
        yield {"role": "assistant", "content": case.said + MARK}, False
        yield {"role": "assistant", "content": case.said + MARK}, True
        return
    # Where the template shows no calls, what the turn says stands for them.
    for said in (case.said, case.said + MARK):
        turn = calling([(call_id(i), MARK) for i in range(case.calls)], said)
        yield turn, False
        yield with_text_arguments(turn), True


def with_text_arguments(message: Mapping[str, Any]) -> dict[str, Any]:
    """Copies a message with the arguments of its calls as JSON text, as policies send them."""
    if not message.get("tool_calls"):
        return dict(message)
    calls = [
        {**call, "function": {**call["function"], "arguments": json.dumps(call["function"]["arguments"])}}
        for call in message["tool_calls"]
    ]
    return {**message, "tool_calls": calls}


def _lost(probe: str, count: int) -> str:
    """Says what the template does with the new messages, if it does not append them; empty if it does."""
    behind = probe[probe.rfind(MARK) :]
    places = [behind.find(f"{_PLAIN}{i}e") for i in range(count)]
    if any(f"{_PLAIN}{i}e" not in probe for i in range(count)):
        return "the template leaves out a new message"
    if -1 in places:
        return "the template writes a new message in front of the policy's turn"
    if places != sorted(places) or any(probe.count(f"{_PLAIN}{i}e") != 1 for i in range(count)):
        return "the template repeats or reorders the new messages"
    return ""
