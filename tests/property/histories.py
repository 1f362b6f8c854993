"""Random histories of rollouts: a journal as a worker writes it, and the result that goes with it.

A history has plain turns, turns in several parts, untrained ones and ones without ids; trainers that echo another tail
or render history again; results of tools, what environments say, edits, and other branches. Nothing is rendered: ids
are random.
"""

import string
from dataclasses import dataclass, field
from random import Random
from typing import Any

from rolloutpool_common.outcomes import FinishReason, RolloutStatus
from rolloutpool_common.protocol.drift import DriftLabel, PromptDifference
from rolloutpool_common.protocol.environments import CrashEffect, EnvironmentFacts, EnvironmentStep
from rolloutpool_common.protocol.journal import (
    EditRecord,
    EnvironmentRecord,
    JournalRecord,
    MaskPlan,
    ObservationRecord,
    PlannedTurn,
    TrainerKind,
    TurnRecord,
)
from rolloutpool_common.protocol.messages import Message
from rolloutpool_common.protocol.result import RolloutResult, StopToken, ToolTime, TurnSummary
from rolloutpool_common.tokens.entries import TokenizerFingerprint
from rolloutpool_common.tokens.ledger import TokenLedger

LETTERS = string.printable + "äß\u2028\u0000😀"
FINGERPRINT = TokenizerFingerprint(tokenizer_sha256="a" * 64, template_sha256="b" * 64, transformers_version="5.1")


@dataclass
class _Branch:
    ledger: TokenLedger
    messages: list[dict[str, Any]]
    written: int = 0
    """Entries that records have."""
    turns: int = 0


@dataclass
class History:
    """What came of it."""

    submitted: list[dict[str, Any]]
    records: list[JournalRecord] = field(default_factory=list)
    turns: list[TurnSummary] = field(default_factory=list)
    """As the result reports them."""
    branches: list[_Branch] = field(default_factory=list)

    @property
    def result(self) -> RolloutResult:
        """The rollout's result, without a record."""
        return RolloutResult(
            uid="b-0",
            rollout_id="r",
            batch_id="b",
            index=0,
            status=RolloutStatus.COMPLETED,
            finish_reason=FinishReason.STOP,
            messages=[Message.model_validate(message) for message in self.branches[0].messages],
            samples=[sample for branch in self.branches for sample in branch.ledger.samples()],
            turns=list(self.turns),
            tokenizer=FINGERPRINT.model_dump(),
        )


def play(pick: Random) -> History:
    """Plays one history."""
    return _Play(pick).run()


class _Play:
    def __init__(self, pick: Random) -> None:
        self.pick = pick
        self.history = History([self.message(role) for role in pick.choice((("user",), ("system", "user")))])

    def run(self) -> History:
        history, pick = self.history, self.pick
        opened: list[dict[str, Any]] = []
        if pick.random() < 0.3:
            opened = [self.message("user")]
            session = EnvironmentRecord(
                name="game", crash=pick.choice(list(CrashEffect)), messages=opened, tools_digest=self.digest()
            )
            history.records.append(session)
        history.branches.append(_Branch(TokenLedger(FINGERPRINT), [*history.submitted, *opened]))
        if pick.random() < 0.2:
            history.branches.append(_Branch(TokenLedger(FINGERPRINT), [self.message("user")]))
        for _ in range(pick.randrange(1, 7)):
            self.turn(pick.randrange(len(history.branches)))
        return history

    def turn(self, number: int) -> None:
        pick, branch = self.pick, self.history.branches[number]
        branch.turns += 1
        self.echo(branch)
        sampled = 0
        train, parts = pick.random() < 0.8, pick.choice((1, 1, 1, 2))
        for part in range(parts):
            ids = self.ids(pick.choice((0, 1, 5, 40)))
            logprobs = [pick.choice((-0.5, -1e-300, 0.0, -0.0, -pick.random() * 9)) for _ in ids]
            version = pick.choice((None, "7", f"<={part}"))
            branch.ledger.append_sampled(ids, logprobs, turn=branch.turns, policy_version=version, train=train)
            sampled += len(ids)
        summary = self.summary(branch, sampled)
        message = self.message("assistant")
        self.history.records.append(
            TurnRecord(
                message=message,
                entries=self.entries(branch),
                trainer=pick.choice(list(TrainerKind)),
                zero_logprobs=pick.random() < 0.1,
                summary=summary,
                llm_ms=pick.random() * 1000,
                branch=number,
            )
        )
        branch.messages.append(message)
        self.history.turns.append(summary)
        what = pick.random()
        if what < 0.6:
            self.observe(number, branch, message.get("tool_calls") or [])
        if what < 0.2:
            self.observe(number, branch, [])
        elif what > 0.85:
            self.edit(number, branch)

    def echo(self, branch: _Branch) -> None:
        """The trainer's prompt: the first one, the expected one, one with another tail, or another history."""
        pick, ledger = self.pick, branch.ledger
        if not ledger.entries:
            ledger.seed(self.ids(pick.randrange(1, 60)))
            return
        kind = pick.random()
        if kind < 0.2:
            ledger.accept_echo([*ledger.ids[: ledger.head], *self.ids(3)])
        elif kind < 0.4:
            keep = pick.randrange(len(ledger))
            ledger.accept_echo([*ledger.ids[:keep], *self.ids(30)])

    def observe(self, number: int, branch: _Branch, calls: list[dict[str, Any]]) -> None:
        pick = self.pick
        results = [{**self.message("tool"), "tool_call_id": call["id"]} for call in calls]
        messages = [*results, *(self.message("user") for _ in range(pick.choice((0, 1))))]
        branch.ledger.append_close(self.ids(pick.choice((0, 1))), turn=branch.turns)
        branch.ledger.append_glue(self.ids(pick.choice((0, 12, 80))), turn=branch.turns)
        times = tuple(
            ToolTime("add", round(pick.random() * 9, 1), ok=True, error=pick.choice((None, "E"))) for _ in calls
        )
        facts = None
        if pick.random() < 0.3:
            steps = (EnvironmentStep(0, pick.choice((None, 0.25)), pick.random() < 0.5, {"x": [1, None, "ü"]}),)
            facts = EnvironmentFacts(steps, pick.choice((None, "c25hcA==")))
        self.history.records.append(
            ObservationRecord(
                messages=messages,
                entries=self.entries(branch),
                planned=self.planned(),
                tools_ms=pick.random() * 100,
                tool_calls=len(calls),
                warnings=pick.choice(((), ("tool_blocked:add",))),
                times=times,
                environment=facts,
                branch=number,
            )
        )
        branch.messages += messages
        if times:
            last = max(n for n, turn in enumerate(self.turn_records()) if turn.branch == number)
            self.history.turns[last] = self.history.turns[last].model_copy(update={"tools": list(times)})

    def edit(self, number: int, branch: _Branch) -> None:
        kept = branch.messages[: self.pick.randrange(1, len(branch.messages) + 1)]
        messages = [*kept, *(self.message("user") for _ in range(self.pick.choice((0, 1))))]
        branch.ledger.accept_echo([*branch.ledger.ids[: self.pick.randrange(len(branch.ledger))], *self.ids(9)])
        self.history.records.append(
            EditRecord(messages=messages, entries=self.entries(branch), planned=self.planned(), branch=number)
        )
        branch.messages = list(messages)

    def turn_records(self) -> list[TurnRecord]:
        return [record for record in self.history.records if isinstance(record, TurnRecord)]

    def entries(self, branch: _Branch) -> tuple[Any, ...]:
        entries = branch.ledger.entries_since(branch.written)
        branch.written += len(entries)
        return entries

    def summary(self, branch: _Branch, sampled: int) -> TurnSummary:
        pick = self.pick
        difference = PromptDifference(3, self.ids(3), self.ids(2), []) if pick.random() < 0.1 else None
        return TurnSummary(
            turn=branch.turns,
            prompt_tokens=len(branch.ledger) - sampled,
            sampled_tokens=sampled,
            mask_sent=pick.choice((None, 12)),
            finish_reason=pick.choice((None, "stop", "length")),
            drift=pick.choice(list(DriftLabel)).value,
            tool_calls=0,
            stop=pick.choice(list(StopToken)),
            policy_version=pick.choice((None, "7")),
            start_ms=round(pick.random() * 99, 1),
            llm_ms=round(pick.random() * 99, 1),
            aborts=pick.choice((0, 2)),
            difference=difference,
        )

    def planned(self) -> PlannedTurn:
        pick = self.pick
        plan = MaskPlan(pick.choice(((), (3,), (3, 9))), 3, pick.choice((None, -9)), pick.choice((None, 4)))
        return PlannedTurn(plan, pick.choice((self.digest(), "", "no digest")), pick.random() < 0.1)

    def message(self, role: str) -> dict[str, Any]:
        pick = self.pick
        said: dict[str, Any] = {"role": role, "content": self.text()}
        if pick.random() < 0.1:
            said["content"] = [{"type": "text", "text": self.text(), "n": 0.5}]
        if pick.random() < 0.2:
            said["vendor"] = {"b": [1, 2.5, None, self.text()], "a": True}
        if role == "assistant" and pick.random() < 0.5:
            arguments = pick.choice(({"b": 1, "a": self.text()}, '{"a":15}'))
            calls = [
                {"id": f"c{n}", "type": "function", "function": {"name": "add", "arguments": arguments}} for n in (1, 2)
            ]
            said |= {"content": None, "tool_calls": calls}
        return Message.model_validate(said).wire()

    def text(self) -> str:
        return "".join(self.pick.choice(LETTERS) for _ in range(self.pick.choice((0, 3, 40))))

    def ids(self, n: int) -> list[int]:
        return [self.pick.choice((0, 1, 151_643, 2**32 - 1, self.pick.randrange(2**32))) for _ in range(n)]

    def digest(self) -> str:
        return f"{self.pick.getrandbits(128):032x}"
