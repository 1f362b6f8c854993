"""The first turns of a rollout, where they are recorded: another rollout has sampled them, and this one goes on.

They are answered from that one's record (`recorded`), so the ledger has its ids because the same entries are written
again. At the first turn that is sampled:

1. What the record has taught about the other one's trainer is forgotten: this rollout may have another one.
2. The context becomes the very prompt that the other one's turn was sampled after, where it has that turn, behind the
   same messages.
3. A callback is sent these ids (`prompt_token_ids`), because its trainer has no session of this rollout. A trainer that
   keeps ids samples after them. One that refuses the key is asked again without it: it renders the messages, and its
   echo shows what it has made of them.

The mask of that request is null: to this trainer it is a first turn.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rolloutpool_common.errors import RequestFault
from rolloutpool_common.protocol.environments import CrashEffect
from rolloutpool_common.protocol.journal import (
    EditRecord,
    JournalRecord,
    ObservationRecord,
    TrainerKind,
    TurnRecord,
)
from rolloutpool_common.protocol.turn_headers import TurnKey
from rolloutpool_worker.conversation.history import History
from rolloutpool_worker.conversation.tokens import TokenTrack
from rolloutpool_worker.recorded.script import Script


@dataclass(frozen=True)
class Beginning:
    """The turns that a rollout does not sample."""

    script: Script = field(repr=False)
    """Has them."""
    in_place_of: TurnKey
    """The turn of the other rollout in whose place the first own one is sampled."""
    prompt_ids: list[int] | None = field(repr=False)
    """What that turn was sampled after; None where the other one has no such turn."""
    trained: frozenset[int]
    """Those of the recorded turns that are trained in this rollout as well."""

    @property
    def turn(self) -> int:
        """The first turn that is sampled."""
        return self.in_place_of.turn

    def trains(self, turn: int) -> bool:
        """Whether a turn may be trained."""
        return turn >= self.turn or turn in self.trained

    def recorded_prompt(self, history: History) -> list[int] | None:
        """Returns what the turn was sampled after in the record; None without a record, or of other messages."""
        return self.prompt_ids if self.goes_on(self.turn, history) else None

    def prompt(self, tokens: TokenTrack, history: History) -> list[int] | None:
        """Returns the ids that the turn is asked with; None on a first turn of which no prompt is recorded."""
        recorded = self.recorded_prompt(history)
        return tokens.ledger.ids if recorded is None and tokens.ledger.entries else recorded

    def goes_on(self, turn: int, history: History) -> bool:
        """Whether the messages before a turn are those that the record has behind the turn before it.

        The agent decides them anew, and may do so by an option that is another one here: without a turn for the answer
        (`max_turns`), it asks for no summary.
        """
        before = self.script.turn(turn - 1) if turn > 1 else None
        if before is None:
            return True
        recorded: list[dict[str, Any]] = []
        edited = False
        for one in before.after:
            edited |= isinstance(one, EditRecord)
            recorded = [*([] if isinstance(one, EditRecord) else recorded), *one.messages]
        return recorded == (history.messages if edited else history.messages[len(history.through_last_turn()) :])

    def check_steps(self, turn: int, history: History) -> None:
        """Checks that a recorded turn is asked for where it was."""
        if not self.goes_on(turn, history):
            raise RequestFault(
                f"turn {turn} of the parent followed other messages than this rollout's agent has before it; an option "
                "that differs (max_turns decides whether a summary is asked for), or another agent, is the reason"
            )

    def asked_plainly(self, turn: int) -> list[int] | None:
        """Returns the prompt of a recorded turn that was asked without a mask; None of any other turn from 2 on.

        It was the first own one of a rollout that had such a beginning itself.
        """
        recorded = self.script.turn(turn) if turn < self.turn else None
        return None if recorded is None or recorded.summary.mask_sent is not None else recorded.prompt_ids

    def reach(self, tokens: TokenTrack, history: History, kind: TrainerKind) -> None:
        """Makes the ledger what the turn is sampled after. Asked again after a crash, it does the same again.

        `kind` is what is known of the rollout's own trainer.
        """
        tokens.kind, tokens.found_kind = kind, TrainerKind.UNKNOWN
        recorded = self.recorded_prompt(history)
        if recorded is not None and tokens.ledger.entries:
            tokens.ledger.accept_echo(recorded)

    def check(self, tokens: TokenTrack, history: History) -> None:
        """Checks that an engine, which is asked with the ledger, is asked with the recorded prompt."""
        recorded = self.recorded_prompt(history)
        if recorded is not None and tokens.ledger.ids != recorded:
            raise RequestFault(
                f"turn {self.turn} of the parent was sampled after {len(recorded)} ids, and this worker renders "
                f"{len(tokens.ledger)} others; it has another tokenizer, template or other tools"
            )

    def session_records(self, inherited: Sequence[JournalRecord]) -> Sequence[JournalRecord]:
        """Lists the records by which the session of an environment is brought to where it has to be."""
        kept, session, records = len(self.script), self.script.session, self.script.records
        turns = sum(isinstance(one, TurnRecord) for one in inherited)
        # A worker may have ended between a recorded turn and the session's answer to it.
        if session is None or (turns >= max(kept, 1) and _answers(inherited) >= _answers(records)):
            return inherited
        return () if not kept and session.crash is CrashEffect.NONE else records


def _answers(records: Sequence[JournalRecord]) -> int:
    return sum(isinstance(one, ObservationRecord) and one.environment is not None for one in records)
