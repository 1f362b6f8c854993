"""One rollout as the endpoint knows it: its tokens, its turns, and the turn that is being sampled.

A turn is in one of three states when a request for it arrives, and `Session.admit` says which:

1. `Turn`: it is finished. A request with the same digest gets the same answer again.
2. `RunningTurn`: it is being sampled. A request with the same digest waits for that sampling and shares its answer.
3. `NextTurn`: it comes next, so it is sampled now.

Everything else is a conflict (409): an older attempt, a turn that was asked with another digest, a gap in the turns.

A rollout that is not known here, and does not begin here, is refused as `unknown_session`. The caller may then ask with
the tokens so far. They are proved (`session_proof`), and the session is restored: it begins with that turn, after these
ids, just as a fork's does. Of the turns before it has no masks or log-probabilities.

A session changes only when a turn is whole. A turn that failed leaves no trace, so asking again is safe. Answers are
not stored but rebuilt from the ledger, so memory grows with the tokens and not with turns times tokens. A session is
used from one event loop; once its rollout is over, any thread may read it.
"""

import asyncio
from dataclasses import dataclass
from typing import Any

from rolloutpool_common.protocol.completions import RESTORE_SESSION, UNKNOWN_SESSION
from rolloutpool_common.tokens.comparison import EchoKind
from rolloutpool_common.tokens.ledger import TokenLedger
from rolloutpool_common.tokens.samples import Sample
from rolloutpool_trainer.endpoint.errors import EndpointError
from rolloutpool_trainer.endpoint.policy import Generation
from rolloutpool_trainer.endpoint.prompts import Prompt
from rolloutpool_trainer.endpoint.reply import TurnReply, TurnTokens
from rolloutpool_trainer.endpoint.request import TurnRequest

_NO_SAMPLE = Sample(prompt_ids=[], response_ids=[], response_mask=[], response_logprobs=[], segments=[])


@dataclass(frozen=True, slots=True)
class Turn:
    """A finished turn. Together with the ledger it holds everything that its answer is made of."""

    digest: str
    """Of the request that it was sampled for."""
    head: dict[str, Any]
    """The answer without its token lists."""
    sample: int
    """Which of the ledger's samples holds it."""
    start: int
    """Length of its prompt."""
    n: int
    """How many tokens it sampled."""
    policy_version: str | None


@dataclass(frozen=True, slots=True)
class RunningTurn:
    """The turn that is being sampled."""

    number: int
    digest: str
    task: "asyncio.Task[TurnReply]"


@dataclass(frozen=True, slots=True)
class NextTurn:
    """The turn that has to be sampled for a request."""

    number: int


class Session:
    """One rollout, as `CallbackApp.get_session` hands it out.

    `response_*` are those of the last training sample. There is more than one sample only where a history was edited,
    or was re-rendered with drift; `samples` has them all.
    """

    def __init__(self, rollout_id: str, uid: str | None, *, before: int = 0, restored: bool = False) -> None:
        """A session without turns.

        `before` are the turns that it has not: a fork has them of its parent, or they are from before it was forgotten,
        and `restored`. The first turn here follows them.
        """
        self.rollout_id = rollout_id
        self.uid = uid
        self.before = before
        """How many turns were not sampled in this session. 0, except for a fork, and for a restored one."""
        self.restored = restored
        """Whether this endpoint had forgotten the rollout, and `samples` begin with turn `before + 1` therefore."""
        self.ledger = TokenLedger()
        self.attempt = 0
        """The highest attempt that a request named; 0 if none did."""
        self.mismatches = 0
        """How many wrong masks were sent. A strict endpoint refuses them, every endpoint counts them."""
        self.running: RunningTurn | None = None
        self.history: tuple[bytes, ...] = ()
        """Digests of the messages of the last request, and of the reply to it."""
        self._opening: tuple[bytes, ...] = ()
        self._turns: list[Turn] = []
        self._samples = 0

    @classmethod
    def open(cls, request: TurnRequest) -> "Session":
        """Opens the session of a rollout that is not known here.

        Raises 409 `unknown_session` where the rollout does not begin here, and the request has no tokens of the turns
        before.
        """
        rollout_id, before = request.body.rollout_id, (request.turn or 1) - 1
        # A fork begins here at the turn at which it left its parent.
        if not before or request.forked_from is not None:
            return cls(rollout_id, request.uid, before=before)
        if request.past is None:
            raise EndpointError(
                409,
                UNKNOWN_SESSION,
                f"turn {request.turn} cannot follow: this endpoint has no session of this rollout. It was dropped, or "
                f"the trainer was restarted; ask the same turn with the ids so far ({RESTORE_SESSION}), or start the "
                "rollout again",
                rollout_id=rollout_id,
                expected=1,
                received=request.turn,
            )
        return cls(rollout_id, request.uid, before=before, restored=True)

    @property
    def turns(self) -> int:
        """How many turns the rollout has; those count that were not sampled in this session."""
        return self.before + len(self._turns)

    @property
    def is_unproved(self) -> bool:
        """Whether it is to be restored from tokens that are not proved yet."""
        return self.restored and not self.begun

    @property
    def begun(self) -> bool:
        """Whether any of them was sampled here."""
        return bool(self._turns)

    @property
    def samples(self) -> list[Sample]:
        """The training samples; every sampled token has mask 1 in exactly one of them."""
        return self.ledger.samples()

    @property
    def prompt_ids(self) -> list[int]:
        """Returns what the policy saw before its first token of the last sample, [P]."""
        return self._last.prompt_ids

    @property
    def response_ids(self) -> list[int]:
        """From the first sampled token to the last one, [R]."""
        return self._last.response_ids

    @property
    def response_mask(self) -> list[int]:
        """1 where the policy sampled the token, else 0, [R]."""
        return self._last.response_mask

    @property
    def response_logprobs(self) -> list[float]:
        """0.0 where the mask is 0, [R]."""
        return self._last.response_logprobs

    @property
    def ones(self) -> int:
        """Sampled tokens in the response."""
        return sum(self._last.response_mask)

    @property
    def zeros(self) -> int:
        """Tokens in the response that the policy did not sample: tool results and template text."""
        return len(self._last.response_mask) - self.ones

    @property
    def _last(self) -> Sample:
        samples = self.ledger.samples()
        return samples[-1] if samples else _NO_SAMPLE

    def appended(self, request: TurnRequest) -> int | None:
        """How many messages are new since the last turn's reply; None on turn 1, or where the history was edited."""
        known = len(self.history)
        if not self.begun or request.edited or request.history[:known] != self.history:
            return None
        new = request.body.messages[known:]
        # An assistant message that this endpoint did not sample is an edit too.
        return None if any(message.role == "assistant" for message in new) else len(new)

    def restarts_with(self, request: TurnRequest) -> bool:
        """Whether a caller without turn identity starts this rollout again: its first request, without a mask."""
        is_anonymous = request.turn is None and request.mask is None
        return is_anonymous and self.running is None and request.history == self._opening

    def admit(self, request: TurnRequest) -> NextTurn | RunningTurn | Turn:
        """Finds out which turn a request is for, and in which state that turn is.

        Raises 409 for a lower attempt than was seen before, for another request in the place of a turn that is finished
        or running, and for a turn whose predecessors are unknown here.
        """
        # First of all, because an attempt that was replaced must not join the turn of the one that replaced it.
        self._check_attempt(request)
        if self.running is not None:
            return self._join(self.running, request)
        # A caller without turn identity always means the next turn.
        number = request.turn or self.turns + 1
        if number <= self.turns:
            return self._repeat(number, request)
        if number > self.turns + 1:
            raise self._conflict(
                f"turn {number} cannot follow: this endpoint has {self.turns} turns of this rollout. Its session was "
                "dropped, or the trainer was restarted; start the rollout again",
                expected=self.turns + 1,
                received=number,
            )
        return NextTurn(number)

    def commit(
        self,
        request: TurnRequest,
        number: int,
        prompt: Prompt,
        generation: Generation,
        head: dict[str, Any],
        message_digest: bytes,
    ) -> Turn:
        """Makes a sampled turn part of the rollout; returns it, and its answer can be made of it again.

        `head` is the answer without its token lists. By `message_digest` the next request's history is recognised.
        """
        # What the policy saw goes into the ledger before what it sampled: the ledger only grows at its end.
        if not self.begun:
            self.ledger.seed(prompt.ids)
            self._opening = request.history
        elif prompt.delta is not None:
            self.ledger.append_close(prompt.delta.close_ids, turn=number)
            self.ledger.append_glue(prompt.delta.glue_ids, turn=number)
        # The whole prompt was rendered. Where it changes sampled ids, the ledger closes its sample and begins another.
        elif self.ledger.accept_echo(prompt.ids).kind is EchoKind.FORK:
            self._samples += 1
        start, version = len(self.ledger), generation.policy_version
        self.ledger.append_sampled(generation.token_ids, generation.logprobs, turn=number, policy_version=version)
        turn = Turn(
            digest=request.digest,
            head=head,
            sample=self._samples,
            start=start,
            n=len(generation.token_ids),
            policy_version=version,
        )
        self._turns.append(turn)
        self.history = (*request.history, message_digest)
        return turn

    def tokens_of(self, turn: Turn) -> TurnTokens:
        """The tokens of a finished turn, from the ledger."""
        # `turn.start` counts from the start of the context, and so includes the sample's prompt.
        sample = self.ledger.samples()[turn.sample]
        first = turn.start - len(sample.prompt_ids)
        return TurnTokens(
            prompt_ids=[*sample.prompt_ids, *sample.response_ids[:first]],
            token_ids=sample.response_ids[first : first + turn.n],
            logprobs=sample.response_logprobs[first : first + turn.n],
        )

    def _check_attempt(self, request: TurnRequest) -> None:
        if request.attempt is None:
            return
        if request.attempt < self.attempt:
            raise self._conflict(
                f"attempt {request.attempt} is over: attempt {self.attempt} of this rollout has asked",
                expected=self.attempt,
                received=request.attempt,
            )
        self.attempt = request.attempt

    def _join(self, running: RunningTurn, request: TurnRequest) -> RunningTurn:
        if (request.turn, request.digest) == (running.number, running.digest):
            return running
        raise self._conflict(
            f"turn {running.number} is being sampled for another request; wait for its reply",
            expected=running.number,
            received=request.turn,
        )

    def _repeat(self, number: int, request: TurnRequest) -> Turn:
        if number <= self.before:
            whose = "before this session was restored" if self.restored else "for the parent of this fork, not for it"
            raise self._conflict(f"turn {number} was sampled {whose}", received=number)
        turn = self._turns[number - 1 - self.before]
        if request.digest == turn.digest:
            return turn
        raise self._conflict(
            f"turn {number} was sampled for a request with another digest; a turn is asked once",
            expected=turn.digest,
            received=request.digest,
        )

    def _conflict(self, message: str, **details: Any) -> EndpointError:
        return EndpointError(409, "conflict", message, rollout_id=self.rollout_id, **details)
