"""What the trainer knows of each rollout: its tokens, its turns, who asks for it.

A session's ledger changes only when a turn is whole: a turn that failed leaves no trace, so asking again is safe.
Replies are not stored but rebuilt from the ledger, so memory grows with the tokens, not with turns times tokens. Used
from one event loop; reading a session whose rollout is over is safe from any thread.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rolloutpool_common.tokens.ledger import EchoKind, Sample, TokenLedger
from rolloutpool_trainer.endpoint.errors import EndpointError
from rolloutpool_trainer.endpoint.policy import Generation
from rolloutpool_trainer.endpoint.prompts import Prompt
from rolloutpool_trainer.endpoint.request import TurnRequest

__all__ = ["Key", "RunningTurn", "Session", "SessionStore", "Turn", "TurnReply", "session_key"]

Key = tuple[str, str | None]
"""(rollout_id, uid): two batches may give their rollouts the same name."""


@dataclass(frozen=True, slots=True)
class TurnReply:
    """A turn's answer as it goes over the wire."""

    body: bytes
    headers: dict[str, str]


@dataclass(frozen=True, slots=True)
class Turn:
    """A finished turn: with the ledger, all that its reply is made of."""

    digest: str
    head: dict[str, Any]
    """The reply without its token lists."""
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


class Session:
    """One rollout, as `CallbackApp.get_session` hands it out.

    `response_*` are those of the last training sample; there is more than one only where a history was edited or
    re-rendered with drift (`samples`).
    """

    def __init__(self, rollout_id: str, uid: str | None) -> None:
        self.rollout_id = rollout_id
        self.uid = uid
        self.ledger = TokenLedger()
        self.attempt = 0
        """The highest attempt that asked; 0 if none said."""
        self.mismatches = 0
        """Masks that were not what they had to be: refused by a strict endpoint, counted by any."""
        self.running: RunningTurn | None = None
        self.history: tuple[bytes, ...] = ()
        """Digests of the messages of the last request and of the reply to it."""
        self._opening: tuple[bytes, ...] = ()
        self._turns: list[Turn] = []
        self._samples = 0

    @property
    def turns(self) -> int:
        """How many turns were sampled."""
        return len(self._turns)

    @property
    def samples(self) -> tuple[Sample, ...]:
        """The training samples; every sampled token has mask 1 in exactly one of them."""
        return self.ledger.samples()

    @property
    def prompt_ids(self) -> list[int]:
        """What the policy saw before its first token of the last sample, [P]."""
        return list(self._last.prompt_ids)

    @property
    def response_ids(self) -> list[int]:
        """From the first sampled token to the last one, [R]."""
        return list(self._last.response_ids)

    @property
    def response_mask(self) -> list[int]:
        """1 where the policy sampled the token, else 0, [R]."""
        return list(self._last.response_mask)

    @property
    def response_logprobs(self) -> list[float]:
        """0.0 where the mask is 0, [R]."""
        return list(self._last.response_logprobs)

    @property
    def ones(self) -> int:
        """Sampled tokens in the response."""
        return sum(self._last.response_mask)

    @property
    def zeros(self) -> int:
        """Tokens in the response that nobody sampled: tool results and template."""
        return len(self._last.response_mask) - self.ones

    @property
    def _last(self) -> Sample:
        samples = self.ledger.samples()
        return samples[-1] if samples else Sample((), (), (), (), ())

    def admit(self, ask: TurnRequest) -> int | RunningTurn | Turn:
        """What to do with a request: sample turn n, wait for the one that runs, or repeat a finished one.

        Raises:
            EndpointError: 409 for a lower attempt than seen, for another request in the place of a turn that is
                finished or running, and for a turn whose predecessors are unknown here.
        """
        if ask.attempt is not None:
            if ask.attempt < self.attempt:
                raise self._conflict(
                    f"attempt {ask.attempt} is over: attempt {self.attempt} of this rollout has asked",
                    expected=self.attempt,
                    received=ask.attempt,
                )
            self.attempt = ask.attempt
        if self.running is not None:
            if ask.turn == self.running.number and ask.digest == self.running.digest:
                return self.running
            raise self._conflict(
                f"turn {self.running.number} is being sampled for another request; wait for its reply",
                expected=self.running.number,
                received=ask.turn,
            )
        number = ask.turn or self.turns + 1
        if number <= self.turns:
            turn = self._turns[number - 1]
            if turn.digest == ask.digest:
                return turn
            raise self._conflict(
                f"turn {number} was sampled for a request with another digest; a turn is asked once",
                expected=turn.digest,
                received=ask.digest,
            )
        if number > self.turns + 1:
            raise self._conflict(
                f"turn {number} cannot follow: this endpoint has {self.turns} turns of this rollout. Its session was "
                "dropped, or the trainer was restarted; start the rollout again",
                expected=self.turns + 1,
                received=number,
            )
        return number

    def restarts_with(self, ask: TurnRequest) -> bool:
        """Whether a caller without turn identity begins this rollout anew: the first request again, no mask."""
        return ask.turn is None and ask.mask is None and self.running is None and ask.history == self._opening

    def commit(
        self, ask: TurnRequest, number: int, prompt: Prompt, generation: Generation, head: dict[str, Any], said: bytes
    ) -> Turn:
        """Makes a sampled turn part of the rollout. `said` is the digest of its message."""
        if not self.turns:
            self.ledger.seed(prompt.ids)
            self._opening = ask.history
        elif prompt.delta is not None:
            self.ledger.append_close(prompt.delta.close_ids, turn=number)
            self.ledger.append_glue(prompt.delta.glue_ids, turn=number)
        elif self.ledger.accept_echo(prompt.ids).kind is EchoKind.FORK:
            self._samples += 1
        start, version = len(self.ledger), generation.policy_version
        self.ledger.append_sampled(generation.token_ids, generation.logprobs, turn=number, policy_version=version)
        turn = Turn(
            digest=ask.digest,
            head=head,
            sample=self._samples,
            start=start,
            n=len(generation.token_ids),
            policy_version=version,
        )
        self._turns.append(turn)
        self.history = (*ask.history, said)
        return turn

    def tokens_of(self, turn: Turn) -> tuple[list[int], list[int], list[float]]:
        """Prompt [start], sampled ids [n] and log-probabilities [n] of a finished turn."""
        sample = self.ledger.samples()[turn.sample]
        first = turn.start - len(sample.prompt_ids)
        return (
            [*sample.prompt_ids, *sample.response_ids[:first]],
            list(sample.response_ids[first : first + turn.n]),
            list(sample.response_logprobs[first : first + turn.n]),
        )

    def _conflict(self, message: str, **details: Any) -> EndpointError:
        return EndpointError(409, "conflict", message, rollout_id=self.rollout_id, **details)


def session_key(ask: TurnRequest) -> Key:
    """Which session a request belongs to."""
    return ask.request.rollout_id, ask.uid


class SessionStore:
    """Sessions by key, the least recently used first. Bounded by number and by age; one that is sampling stays."""

    def __init__(self, max_sessions: int, ttl: float, clock: Callable[[], float] = time.monotonic) -> None:
        """At most `max_sessions`, none unused for more than `ttl` seconds."""
        self._max, self._ttl, self._clock = max_sessions, ttl, clock
        self._sessions: OrderedDict[Key, Session] = OrderedDict()
        self._used: dict[Key, float] = {}
        self._named: dict[str, dict[Key, None]] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def find(self, key: Key) -> Session | None:
        """The session, which counts as used now."""
        self._expire()
        session = self._sessions.get(key)
        if session is not None:
            self._touch(key)
        return session

    def put(self, key: Key, session: Session) -> None:
        """Keeps a session, in the place of one with the same key, at the cost of the least recently used."""
        if key in self._sessions:
            self.remove(key)
        self._sessions[key] = session
        self._named.setdefault(key[0], {})[key] = None
        self._touch(key)
        self._expire()

    def named(self, rollout_id: str) -> Session | None:
        """The session of this rollout id that was opened last."""
        keys = self._named.get(rollout_id)
        return self._sessions[next(reversed(keys))] if keys else None

    def drop(self, rollout_id: str) -> int:
        """Forgets all sessions of this rollout id; says how many there were."""
        keys = tuple(self._named.get(rollout_id, ()))
        for key in keys:
            self.remove(key)
        return len(keys)

    def remove(self, key: Key) -> None:
        """Forgets one session."""
        del self._sessions[key], self._used[key], self._named[key[0]][key]
        if not self._named[key[0]]:
            del self._named[key[0]]

    def _touch(self, key: Key) -> None:
        self._sessions.move_to_end(key)
        self._used[key] = self._clock()

    def _expire(self) -> None:
        oldest = self._clock() - self._ttl
        precancelled: list[Key] = []
        for key, session in self._sessions.items():
            if len(self._sessions) - len(precancelled) <= self._max and self._used[key] >= oldest:
                break
            if session.running is None:
                precancelled.append(key)
        for key in precancelled:
            self.remove(key)
