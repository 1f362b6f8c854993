"""Random conversations, played into the ledger and into a list that remembers where each id came from.

Whatever happens (parallel calls, typed control tokens, turns cut short or without their stop token, echoes that differ
in the tail or in history, edits), in every sample the mask is 1 exactly where the list says "sampled and trained",
each sampled id occurs once, verbatim, and what lies between is what the oracle renders. An example is a function of
its seed: the same seed is the same conversation.
"""

import json
from dataclasses import dataclass, field
from random import Random

from tests.oracle.conversations import Case, Player, Talk
from tests.oracle.encoder import Mixed
from tests.oracle.referee import Appended, Message, TemplateRaised
from tests.property.odd_families import ODD
from tests.support.journals import entry_document, parse_entry

from rolloutpool_common.rendering import (
    SAMPLED_TAIL,
    ChatTokenizer,
    ContentUnsafe,
    HistoryRewritten,
    RerenderCounter,
    TemplateRefused,
)
from rolloutpool_common.tokens.comparison import EchoKind
from rolloutpool_common.tokens.ledger import TokenLedger

WORDED = frozenset(f"family:{name}" for name in ODD)
"""Whose turns' own words decide what a template writes behind them."""


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


def play(tokenizer: ChatTokenizer, player: Player, seed: str) -> Tally:
    """Play one conversation. Raises WrongMask."""
    return _Play(tokenizer, player, Random(seed)).run()


class _Play:
    def __init__(self, tokenizer: ChatTokenizer, player: Player, random: Random) -> None:
        self.tokenizer, self.random = tokenizer, random
        self.referee = player.referee
        self.talk = Talk(player, random)
        self.tools, self.kwargs = self.talk.tools, self.talk.kwargs
        self.tally = Tally(examples=1)
        self.wire: list[Message] = []
        """The messages so far, as a request has them."""

    def run(self) -> Tally:
        chance = self.random.random
        history = self.talk.opening()
        try:
            prompt = self.referee.prompt(history, self.tools, self.kwargs)
            ours = self.tokenizer.render_prompt(history, tools=self.tools, template_kwargs=self.kwargs)
        except (TemplateRaised, Mixed, ContentUnsafe):  # ours is stricter where texts add up
            return self.tally
        self.expect(ours == prompt, "the prompt", history)
        counters = {
            parsed: RerenderCounter(self.tokenizer, tools=self.tools, template_kwargs=self.kwargs, parsed=parsed)
            for parsed in (False, True)
        }
        ledger, truth = TokenLedger(), _Provenance(prompt)
        ledger.seed(prompt)
        for turn in range(1, 1 + self.talk.rounds()):
            self.tally.turns += 1
            case = self.talk.case(history)
            self.sample(ledger, truth, case.sampled, turn)
            if not self.append(ledger, truth, case, turn):
                break
            self.echo(ledger, truth)
            history = [*case.history, *case.new]
            # Parts are no matter of counting: what trainers make of them is the template's.
            if chance() < 0.2 and not any(isinstance(m["content"], list) for m in history):
                self.predict(counters, history)
        self.check(ledger, truth)
        return self.tally

    def expect(self, holds: bool, what: str, detail: object) -> None:
        if not holds:
            raise WrongMask(f"{self.referee.name}: {what}: {detail!r}")

    def sample(self, ledger: TokenLedger, truth: _Provenance, ids: list[int], turn: int) -> None:
        """A turn's ids, under one policy version or two, in training or out of it."""
        pick = self.random
        logprobs = [-pick.random() - 1e-9 for _ in ids]
        train = pick.random() < 0.9
        split = pick.randrange(len(ids) + 1) if pick.random() < 0.2 else 0  # two policy versions in one turn
        for part in (slice(0, split), slice(split, None)) if split else (slice(None),):
            ledger.append_sampled(ids[part], logprobs[part], turn=turn, policy_version=str(part), train=train)
        truth.sample(ids, logprobs, train)
        self.tally.sampled_ids += len(ids)

    def append(self, ledger: TokenLedger, truth: _Provenance, case: Case, turn: int) -> bool:
        """Render what is new, beside the oracle; false where the rollout ends with a refusal."""
        try:
            delta = self.tokenizer.render_delta(
                case.new,
                sampled=ledger.last_sampled(SAMPLED_TAIL),
                history=case.history,
                tools=self.tools,
                template_kwargs=self.kwargs,
            )
        except TemplateRefused as refusal:
            name = type(refusal).__name__
            # Refusing is always safe, but only few needless kinds are meant: content that adds up to control strings, a
            # late system message that a template appends only sometimes, and a turn that was cut in white space.
            spaced = case.kind == "cut" and str(case.history[-1]["content"])[-1:].isspace()
            # The rule refuses what follows from the turn's words, which its sentinel hides. Templates look for thoughts
            # in them, such as Gemma 4's for a channel.
            looked_at = self.referee.name in WORDED or "<|" in str(case.history[-1]["content"])
            worded = looked_at and isinstance(refusal, HistoryRewritten)
            meant = isinstance(refusal, ContentUnsafe) or case.new[0]["role"] == "system" or spaced or worded
            self.expect(meant or not isinstance(case.verdict, Appended), f"refused ({name})", case)
            self.tally.refused += 1
            self.tally.reasons[name] = self.tally.reasons.get(name, 0) + 1
            return False
        close, glue = list(delta.close_ids), list(delta.glue_ids)
        if case.expected is None:
            self.tally.deltas_without_oracle += 1
        else:
            self.expect([*close, *glue] == case.expected, f"the delta ({case.kind})", (case, [*close, *glue]))
            self.tally.deltas_checked += 1
        ledger.append_close(close, turn=turn)
        ledger.append_glue(glue, turn=turn)
        truth.glue([*close, *glue])
        return True

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
                given = [_parsed(message) for message in wire] if parsed else wire
                rendered = self.referee.encoder.plain(self.referee.render(given, self.tools, self.kwargs))
            except TemplateRaised:
                continue
            form = "parsed" if parsed else "as text"
            self.expect(counter.count(wire) == len(rendered), f"the predicted count ({form})", wire)
            self.tally.predictions += 1

    def on_the_wire(self, message: Message) -> Message:
        """The message with the arguments of its calls as text, in one of the ways in which policies spell JSON."""
        if "tool_calls" not in message:
            return message
        value = {"a": self.talk.text(), "n": [1, 2.50, None]}
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
            entries = [parse_entry(entry_document(entry)) for entry in ledger.entries]
            self.expect(TokenLedger.replay(entries) == ledger, "the replayed journal", None)


def _parsed(message: Message) -> Message:
    calls = message.get("tool_calls")
    if not calls:
        return message
    parsed = [
        {**call, "function": {**call["function"], "arguments": json.loads(call["function"]["arguments"])}}
        for call in calls
    ]
    return {**message, "tool_calls": parsed}
