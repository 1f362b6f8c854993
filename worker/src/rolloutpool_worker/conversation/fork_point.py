"""Says where a fork leaves its parent: the first turn that is really sampled, and what it must be sampled after.

The turns before it are answered from the parent's record (`recorded`), so the ledger has the parent's ids. At the fork
point:

1. What the record has taught about the parent's trainer is forgotten: the fork may have another one.
2. The context becomes the very prompt that the parent's turn was sampled after, where the parent has that turn.
3. A callback is sent these ids (`prompt_token_ids`), because its trainer has no session of this rollout. A trainer that
   keeps ids samples after them. One that refuses the key is asked again without it: it renders the messages, and its
   echo shows what it has made of them.

The mask of that request is null: to this trainer it is a first turn.
"""

from dataclasses import dataclass, field

from rolloutpool_common.errors import RequestFault
from rolloutpool_common.protocol.journal import TrainerKind
from rolloutpool_common.protocol.replay import ForkOrigin
from rolloutpool_worker.conversation.tokens import TokenTrack


@dataclass(frozen=True)
class ForkPoint:
    """The fork point of one rollout."""

    origin: ForkOrigin
    prompt_ids: list[int] | None = field(repr=False)
    """What the parent's turn was sampled after; None where it has no such turn."""
    trained: frozenset[int]
    """The parent's turns that are trained in the fork as well."""
    kind: TrainerKind = TrainerKind.UNKNOWN
    """What is known of the fork's own trainer."""

    @property
    def turn(self) -> int:
        """The first turn that is sampled."""
        return self.origin.turn

    def trains(self, turn: int) -> bool:
        """Whether a turn may be trained."""
        return turn >= self.turn or turn in self.trained

    def prompt(self, tokens: TokenTrack) -> list[int] | None:
        """Returns the ids that the turn is asked with; None on a first turn of which no prompt is recorded."""
        if self.prompt_ids is not None:
            return self.prompt_ids
        return tokens.ledger.ids if tokens.ledger.entries else None

    def reach(self, tokens: TokenTrack) -> None:
        """Makes the ledger what the turn is sampled after. Asked again after a crash, it does the same again."""
        tokens.kind, tokens.found_kind = self.kind, TrainerKind.UNKNOWN
        if self.prompt_ids is not None and tokens.ledger.entries:
            tokens.ledger.accept_echo(self.prompt_ids)

    def check(self, tokens: TokenTrack) -> None:
        """Checks that an engine, which is asked with the ledger, is asked with the parent's prompt."""
        if self.prompt_ids is not None and tokens.ledger.ids != self.prompt_ids:
            raise RequestFault(
                f"turn {self.turn} of the parent was sampled after {len(self.prompt_ids)} ids, and this worker renders "
                f"{len(tokens.ledger)} others; it has another tokenizer, template or other tools"
            )
