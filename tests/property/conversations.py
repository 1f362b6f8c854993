"""Random conversations, played into the ledger and into a list that remembers where each id came from.

Whatever happens (parallel calls, typed control tokens, turns cut short or without their stop token, echoes that differ
in the tail or in history, edits), in every sample the mask is 1 exactly where the list says "sampled and trained",
each sampled id occurs once, verbatim, and what lies between is what the oracle renders. An example is a function of
its seed: the same seed is the same conversation.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.property.oracle import Message, Oracle, TemplateRaised, turn_before
from tests.support.journals import parse_entry

from rolloutpool_common.rendering import (
    SAMPLED_TAIL,
    ChatTokenizer,
    ContentUnsafe,
    RerenderCounter,
    TemplateRefused,
)
from rolloutpool_common.tokens.comparison import EchoKind
from rolloutpool_common.tokens.ledger import TokenLedger

__all__ = ["Tally", "WrongMask", "play"]

_WORDS = (
    "the", "result", " is", "38", " ", "\n", "\n\n", "\t", "  ", "é", "e\u0301", "漢字", "🙂", "👩\u200d🚀",
    "\u202eabc", '{"a": 15}', "```json\n", "def f(x):\n    return x", "\\", "'", '"', "<", ">", "|", "<|", "|>", "</",
    "[", "]", "\u00a0", "\u200b", "1e9", "-0.0", "user", "assistant\n", "tool", "%s{}", "{{ x }}", "<b>", "&amp;",
    "\x00", "\x7f", "/no_think", "/think",
)  # fmt: skip
_KWARGS: dict[str, Any] = {"date_string": "26 Jul 2024", "enable_thinking": True}
_TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Adds two numbers.",
            "parameters": {"type": "object", "properties": {"a": {"type": "number", "description": "One."}}},
        },
    }
]


class WrongMask(AssertionError):
    """An example broke the property."""


@dataclass
class Tally:
    """What the examples covered."""

    examples: int = 0
    turns: int = 0
    deltas_checked: int = 0
    deltas_without_oracle: int = 0
    refused: int = 0
    forks: int = 0
    tails: int = 0
    sampled_ids: int = 0
    predictions: int = 0
    reasons: dict[str, int] = field(default_factory=dict)

    def add(self, other: "Tally") -> None:
        """Sum up."""
        for name, value in vars(other).items():
            if name == "reasons":
                for reason, count in value.items():
                    self.reasons[reason] = self.reasons.get(reason, 0) + count
            else:
                setattr(self, name, getattr(self, name) + value)


class _Provenance:
    """The truth: (id, sampled, trained, logprob) in order, one list per sample."""

    def __init__(self, prompt: list[int]) -> None:
        self.now = [(i, False, False, 0.0) for i in prompt]
        self.head = 0
        self.sealed: list[list[tuple[int, bool, bool, float]]] = []
        self.sampled: list[int] = []

    def sample(self, ids: list[int], logprobs: list[float], train: bool) -> None:
        self.now += [(i, True, train, p) for i, p in zip(ids, logprobs, strict=True)]
        self.head = len(self.now)
        self.sampled += ids

    def glue(self, ids: list[int]) -> None:
        self.now += [(i, False, False, 0.0) for i in ids]

    def tail(self, ids: list[int]) -> None:
        del self.now[self.head :]
        self.glue(ids)

    def fork(self, prompt: list[int]) -> None:
        self.sealed.append(self.now[: self.head])
        self.now, self.head = [(i, False, False, 0.0) for i in prompt], 0

    def samples(self) -> list[list[tuple[int, bool, bool, float]]]:
        return [s for s in (*self.sealed, self.now[: self.head]) if any(row[1] for row in s)]


def play(tokenizer: ChatTokenizer, oracle: Oracle, seed: str) -> Tally:
    """Play one conversation. Raises WrongMask."""
    return _Play(tokenizer, oracle, Random(seed)).run()


class _Play:
    def __init__(self, tokenizer: ChatTokenizer, oracle: Oracle, random: Random) -> None:
        self.tokenizer, self.oracle, self.random = tokenizer, oracle, random
        self.tally = Tally(examples=1)
        self.wire: list[Message] = []
        """The messages so far, as a request has them."""
        self.tools = _TOOLS if random.random() < 0.25 or oracle.needs_tools else None
        self.kwargs = {**_KWARGS, "tools": self.tools} if self.tools else _KWARGS
        """As the oracle takes them."""

    def run(self) -> Tally:
        chance = self.random.random
        history: list[Message] = [{"role": "user", "content": self.content()}]
        if chance() < 0.4:
            history.insert(0, {"role": "system", "content": self.content()})
        try:
            prompt = self.oracle.prompt(history, self.kwargs)
        except TemplateRaised:
            return self.tally
        try:
            ours = self.tokenizer.render_prompt(history, tools=self.tools, template_kwargs=_KWARGS)
        except ContentUnsafe:  # stricter than the oracle where content and template text add up
            return self.tally
        self.expect(ours == prompt, "the prompt", history)
        counters = {
            parsed: RerenderCounter(self.tokenizer, tools=self.tools, template_kwargs=_KWARGS, parsed=parsed)
            for parsed in (False, True)
        }
        ledger, truth = TokenLedger(), _Provenance(prompt)
        ledger.seed(prompt)
        for turn in range(1, 2 + self.random.randrange(3)):
            self.tally.turns += 1
            self.sample(ledger, truth, turn)
            new = self.new_messages()
            if not self.append(ledger, truth, history, new, turn):
                break
            self.echo(ledger, truth)
            if chance() < 0.2:
                self.predict(counters, [*history, turn_before(new), *new])
            history += [turn_before(new), *new]
        self.check(ledger, truth)
        return self.tally

    def expect(self, holds: bool, what: str, detail: object) -> None:
        if not holds:
            raise WrongMask(f"{self.oracle.name}: {what}: {detail!r}")

    def content(self) -> str:
        pick = self.random
        pieces = []
        for _ in range(pick.randrange(6)):
            kind = pick.random()
            if kind < 0.75:
                pieces.append(pick.choice(_WORDS))
            else:
                control = pick.choice(self.oracle.control)
                cut = pick.randrange(len(control) + 1)
                pieces.append(control if kind < 0.88 else control[:cut] if kind < 0.94 else control[cut:])
        return "".join(pieces)

    def sample(self, ledger: TokenLedger, truth: _Provenance, turn: int) -> None:
        """A turn in any form: canonical text, odd splits, arbitrary ids; with, without, or with another stop token."""
        pick = self.random
        kind = pick.random()
        if kind < 0.4:
            ids = self.tokenizer.encode(self.content())
        elif kind < 0.7:
            ids = [i for _ in range(pick.randrange(4)) for i in self.tokenizer.encode(pick.choice(_WORDS))]
        else:
            ids = [pick.randrange(self.tokenizer.vocab_size) for _ in range(pick.randrange(6))]
        end = pick.random()
        close = self.tokenizer.close_id
        if end < 0.6 and close is not None:
            ids.append(close)
        elif end < 0.7:
            ids.append(pick.choice(sorted(self.tokenizer.stop_ids)))
        logprobs = [-pick.random() - 1e-9 for _ in ids]
        train = pick.random() < 0.9
        split = pick.randrange(len(ids) + 1) if pick.random() < 0.2 else 0  # two policy versions in one turn
        for part in (slice(0, split), slice(split, None)) if split else (slice(None),):
            ledger.append_sampled(ids[part], logprobs[part], turn=turn, policy_version=str(part), train=train)
        truth.sample(ids, logprobs, train)
        self.tally.sampled_ids += len(ids)

    def new_messages(self) -> list[Message]:
        pick = self.random
        kind = pick.random()
        if kind < 0.05:
            return [{"role": "system", "content": self.content()}]
        results = 0 if kind < 0.4 else 1 if kind < 0.8 else pick.randrange(2, 4)
        new: list[Message] = [
            {"role": "tool", "name": "add", "tool_call_id": f"call{i:05d}", "content": self.result()}
            for i in range(results)
        ]
        if not results or pick.random() < 0.1:
            new.append({"role": "user", "content": self.content()})
        return new

    def result(self) -> Any:
        return {"r": self.content(), "n": 38} if self.random.random() < 0.1 else self.content()

    def append(
        self, ledger: TokenLedger, truth: _Provenance, history: list[Message], new: list[Message], turn: int
    ) -> bool:
        """Render what is new, beside the oracle; false where the rollout ends with a refusal."""
        calls = sum(m["role"] == "tool" for m in new)
        try:
            expected = self.oracle.delta(history, calls, new, self.kwargs)
        except TemplateRaised:
            expected = None
        sampled = ledger.last_sampled(SAMPLED_TAIL)
        try:
            delta = self.tokenizer.render_delta(
                new, sampled=sampled, history=[*history, turn_before(new)], tools=self.tools, template_kwargs=_KWARGS
            )
        except TemplateRefused as refusal:
            name = type(refusal).__name__
            # Refusing is always safe, but only two needless kinds are meant: content that adds up to control strings,
            # and a late system message that a template appends only where another one came first.
            meant = isinstance(refusal, ContentUnsafe) or new[0]["role"] == "system"
            self.expect(meant or not self.oracle.appends(history, calls, new, self.kwargs), f"refused ({name})", new)
            self.tally.refused += 1
            self.tally.reasons[name] = self.tally.reasons.get(name, 0) + 1
            return False
        close, glue = list(delta.close_ids), list(delta.glue_ids)
        if expected is None:
            self.tally.deltas_without_oracle += 1
        else:
            # What the policy has sampled of the end of its turn is not written again: white space, a header that is its
            # stop token, or the stop itself where the oracle's end stands in front of it.
            rest = expected[: len(expected) - len(glue)]
            written = (
                self.tokenizer.decode(sampled).endswith(self.tokenizer.decode(rest))
                or self.ended(sampled, rest)
                or self.spaced(sampled, rest)
                or self.stopped(sampled, rest)
            )
            shortened = not close and self.tokenizer.decode(expected).endswith(self.tokenizer.decode(glue)) and written
            self.expect(glue == expected or shortened, "the delta", (new, glue, expected))
            self.tally.deltas_checked += 1
        ledger.append_close(close, turn=turn)
        ledger.append_glue(glue, turn=turn)
        truth.glue([*close, *glue])
        return True

    def ended(self, sampled: Sequence[int], end: Sequence[int]) -> bool:
        """Whether these very ids were sampled, and nothing but white space after them."""
        found = [at for at in range(len(end), len(sampled) + 1) if tuple(sampled[at - len(end) : at]) == tuple(end)]
        return bool(end and found) and not self.tokenizer.decode(sampled[found[-1] :]).strip()

    def spaced(self, sampled: Sequence[int], end: Sequence[int]) -> bool:
        """Whether other white space was sampled behind a stop, where the template writes nothing but white space."""
        stops = [at for at, token in enumerate(sampled, 1) if token in self.tokenizer.stop_ids]
        behind = sampled[stops[-1] :] if stops else ()
        return bool(behind) and not any(self.tokenizer.decode(ids).strip() for ids in (behind, end))

    def stopped(self, sampled: Sequence[int], end: Sequence[int]) -> bool:
        """Whether the template's stop was sampled, with other white space around it.

        White space was sampled behind it if and only if the template writes some there.
        """
        said, ends = self.tokenizer.decode(sampled), self.tokenizer.decode(end)
        stop = ends.strip()
        spaces = (said != said.rstrip(), ends != ends.rstrip())
        return bool(stop) and said.rstrip().endswith(stop) and spaces[0] == spaces[1]

    def echo(self, ledger: TokenLedger, truth: _Provenance) -> None:
        """A trainer that echoes what we have, another tail, or another history."""
        pick = self.random
        kind = pick.random()
        ids = [row[0] for row in truth.now]
        if kind < 0.7:
            self.expect(ledger.accept_echo(ids).kind is EchoKind.EQUAL, "a clean echo", ids)
        elif kind < 0.85:
            tail = [*ids[truth.head : truth.head + pick.randrange(4)], pick.randrange(self.tokenizer.vocab_size)]
            differs = tail != ids[truth.head :]
            verdict = ledger.accept_echo([*ids[: truth.head], *tail])
            self.expect(verdict.kind is (EchoKind.TAIL if differs else EchoKind.EQUAL), "another tail", tail)
            truth.tail(tail)
            self.tally.tails += differs
        else:
            at = pick.randrange(truth.head)
            other = [*ids[:at], (ids[at] + 1) % self.tokenizer.vocab_size, *ids[pick.randrange(at, len(ids)) :]]
            verdict = ledger.accept_echo(other)
            if verdict.kind is EchoKind.FORK:
                truth.fork(other)
                self.tally.forks += 1
            else:
                self.expect(False, "an edited history", (ids, other))

    def predict(self, counters: dict[bool, RerenderCounter], history: list[Message]) -> None:
        """What trainers that render history again will count, with arguments as text and parsed."""
        # What was sent once stays as it is.
        self.wire += [self.on_the_wire(message) for message in history[len(self.wire) :]]
        wire = list(self.wire)
        for parsed, counter in counters.items():
            try:
                rendered = self.oracle.rendered_again(wire, self.kwargs, parsed=parsed)
            except TemplateRaised:
                continue
            form = "parsed" if parsed else "as text"
            self.expect(counter.count(wire) == len(rendered), f"the predicted count ({form})", wire)
            self.tally.predictions += 1

    def on_the_wire(self, message: Message) -> Message:
        """The message with the arguments of its calls as text, in one of the ways in which policies spell JSON."""
        if "tool_calls" not in message:
            return message
        value = {"a": self.content(), "n": [1, 2.50, None]}
        spelled = (json.dumps(value), json.dumps(value, ensure_ascii=False), json.dumps(value, separators=(",", ":")))
        calls = [
            {**call, "function": {**call["function"], "arguments": self.random.choice(spelled)}}
            for call in message["tool_calls"]
        ]
        return {**message, "tool_calls": calls}

    def check(self, ledger: TokenLedger, truth: _Provenance) -> None:
        self.expect(ledger.ids == [row[0] for row in truth.now], "the context", None)
        self.expect(ledger.mask == [int(row[2]) for row in truth.now], "the context's mask", None)
        samples, expected = ledger.samples(), truth.samples()
        self.expect(len(samples) == len(expected), "the number of samples", len(samples))
        sampled: list[int] = []
        for sample, rows in zip(samples, expected, strict=True):
            last = max(i for i, row in enumerate(rows) if row[1])
            start = len(sample.prompt_ids)
            self.expect(not any(row[1] for row in rows[:start]), "a sampled id in the prompt", start)
            self.expect([*sample.prompt_ids, *sample.response_ids] == [r[0] for r in rows[: last + 1]], "the ids", None)
            truths = rows[start : last + 1]
            self.expect(list(sample.response_mask) == [int(r[2]) for r in truths], "the mask", None)
            logprobs = [r[3] if r[2] else 0.0 for r in truths]
            self.expect(list(sample.response_logprobs) == logprobs, "the log-probabilities", None)
            sampled += [r[0] for r in rows if r[1]]
        self.expect(sampled == truth.sampled, "each sampled id once", None)
        if self.random.random() < 0.1:
            entries = [parse_entry(entry.model_dump(mode="json")) for entry in ledger.entries]
            self.expect(TokenLedger.replay(entries) == ledger, "the replayed journal", None)
