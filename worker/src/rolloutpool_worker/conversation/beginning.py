"""The first turns of a rollout, where they are recorded: another rollout has sampled them, and this one goes on.

They are answered from that one's record (`recorded`), so the ledger has its ids because the same entries are written
again. At the first turn that is sampled:

1. What the record has taught about the other one's trainer is forgotten: this rollout may have another one.
2. The context becomes the very prompt that the other one's turn was sampled after, where it has that turn.
3. A callback is sent these ids (`prompt_token_ids`), because its trainer has no session of this rollout. A trainer that
   keeps ids samples after them. One that refuses the key is asked again without it: it renders the messages, and its
   echo shows what it has made of them.

The mask of that request is null: to this trainer it is a first turn.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from rolloutpool_common.errors import RequestFault
from rolloutpool_common.protocol.environments import CrashEffect
from rolloutpool_common.protocol.journal import JournalRecord, ObservationRecord, TrainerKind, TurnRecord
from rolloutpool_common.protocol.turn_headers import TurnKey
from rolloutpool_worker.conversation.tokens import TokenTrack
from rolloutpool_worker.recorded import Script


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

    def prompt(self, tokens: TokenTrack) -> list[int] | None:
        """Returns the ids that the turn is asked with; None on a first turn of which no prompt is recorded."""
        if self.prompt_ids is not None:
            return self.prompt_ids
        return tokens.ledger.ids if tokens.ledger.entries else None

    def asked_plainly(self, turn: int) -> list[int] | None:
        """Returns the prompt of a recorded turn that was asked without a mask; None of any other turn from 2 on.

        It was the first own one of a rollout that had such a beginning itself.
        """
        recorded = self.script.turn(turn) if turn < self.turn else None
        return None if recorded is None or recorded.summary.mask_sent is not None else recorded.prompt_ids

    def reach(self, tokens: TokenTrack, kind: TrainerKind) -> None:
        """Makes the ledger what the turn is sampled after. Asked again after a crash, it does the same again.

        `kind` is what is known of the rollout's own trainer.
        """
        tokens.kind, tokens.found_kind = kind, TrainerKind.UNKNOWN
        if self.prompt_ids is not None and tokens.ledger.entries:
            tokens.ledger.accept_echo(self.prompt_ids)

    def check(self, tokens: TokenTrack) -> None:
        """Checks that an engine, which is asked with the ledger, is asked with the recorded prompt."""
        if self.prompt_ids is not None and tokens.ledger.ids != self.prompt_ids:
            raise RequestFault(
                f"turn {self.turn} of the parent was sampled after {len(self.prompt_ids)} ids, and this worker renders "
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
