"""The calls of a session under random histories on a real Redis, against a model that is plain Python.

Programs call through doors that die and are started again, workers answer, connections are cut, places change, and the
owner ends the session. After each step the store has the calls and replies of the model, and nothing else:

1. A call that was taken keeps its number, and its reply never changes.
2. An equal call is a repetition where the rules say so, and another call everywhere else.
3. What waits is counted rightly, and no limit is passed.
4. A reply that is written with its turn is there if and only if the turn is.
5. A worker that is told of new calls, and may miss some, comes to the same calls as one that reads them.
"""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import pytest
import redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from hypothesis.stateful import run_state_machine_as_test as run_machine
from tests.support.batches import announce, new_batch, uids_of
from tests.support.examples import examples
from tests.support.journals import turn_record
from tests.support.secrets import SECRETS

from rolloutpool_common.capabilities.harness.calls import HeardCall, ModelCall, StoredCall, note_of, told_calls
from rolloutpool_common.capabilities.harness.sessions import Arrival, OpenSession, Sessions
from rolloutpool_common.capabilities.harness.wire import SessionEnd
from rolloutpool_common.protocol.journal import TurnRecord
from rolloutpool_common.store import Claim, ClaimLost, Store, SubmitLimits

T = TypeVar("T")
MOST_CALLS, MOST_OPEN = 12, 3
TEXTS = ("a", "b")
DOORS = ("d1", "d2")
WHICH = st.integers(0, 11)
RARELY = st.integers(0, 9).map(lambda n: n == 7)
"""For what ends a history, or leads nowhere: at even odds most histories would be over before anything is repeated."""


@dataclass
class CallModel:
    """What is known of one call."""

    text: str
    request: str
    place: int
    holder: str | None
    """Who holds its connection; `cut`, or None once its last byte was taken."""
    reply: str | None = None


class SessionMachine(RuleBasedStateMachine):
    """One session."""

    url = ""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.raw = redis.Redis.from_url(self.url, decode_responses=True)
        self.raw.flushall()
        self.store = Store.open(self.url, secrets=SECRETS)
        self.sessions = Sessions(self.store)
        self.calls: list[CallModel] = []
        self.starts = dict.fromkeys(DOORS, 0)
        self.connections = 0
        self.stored: dict[str, set[str]] = {door: set() for door in DOORS}
        self.heard: dict[str, list[HeardCall]] = {door: [] for door in DOORS}
        """What doors note with their next calls."""
        self.records: list[TurnRecord] = []
        self.place = 1
        self.over = False
        self.last: StoredCall | None = None
        self.known: dict[str, Any] = {}

    def do(self, step: Coroutine[Any, Any, T]) -> T:
        """Runs a step."""
        return self.runner.run(step)

    @initialize()
    def begin(self) -> None:
        """A worker runs the session, and the doors are there."""
        choice = {"external": True, "max_calls": MOST_CALLS, "max_calls_at_once": MOST_OPEN}
        batch = new_batch(1, shared={"harness": choice}, asks={"harness": True}, batch_id="b1")
        self.do(self.store.batches.submit(batch, SubmitLimits(new_bytes=5000)))
        (self.uid,) = uids_of(batch)
        self.do(announce(self.store, "w1"))
        claim = self.do(self.store.rollouts.claim(self.uid, "w1"))
        assert isinstance(claim, Claim)
        self.claim = claim
        self.told: Any = self.raw.pubsub(ignore_subscribe_messages=True)  # type: ignore[no-untyped-call]
        self.told.subscribe("rp:worker:w1:calls")
        found = self.do(self.sessions.open(self.uid))
        assert isinstance(found, OpenSession)
        self.session = found
        for door in DOORS:
            self.do(self.sessions.beat(door, "0"))

    def holder(self, door: str) -> str:
        """Names the next connection of a door's present start."""
        self.connections += 1
        return f"{door} {self.starts[door]} {self.connections}"

    def is_cut(self, holder: str) -> bool:
        """Whether nobody holds a connection any more."""
        door, _, rest = holder.partition(" ")
        return holder == "cut" or rest.split()[0] != str(self.starts[door])

    def repeated(self, text: str, request: str, repeats: bool, place: int) -> int | None:
        """Which call an equal one repeats, by the rules."""
        equal = [(n, call) for n, call in enumerate(self.calls, 1) if call.text == text]
        for n, call in equal:
            if request and (call.request, call.place) == (request, place):
                return n
        for n, call in equal:
            if call.place < place:
                return n
        cut = held = late = None
        for n, call in equal:
            if call.holder is None:
                late = n
            elif self.is_cut(call.holder):
                cut = cut or n
            else:
                held = held or n
        return cut or ((held or late) if repeats else None)

    @rule(
        text=st.sampled_from(TEXTS),
        request=st.sampled_from(["", "", "r1", "r2"]),
        repeats=st.booleans(),
        door=st.sampled_from(DOORS),
        older=RARELY,
        hears=st.booleans(),
    )
    def take(self, text: str, request: str, repeats: bool, door: str, older: bool, hears: bool) -> None:
        """A program calls, perhaps one of an older place. That it hears the reply, its door notes with its next one."""
        place, holder = self.place - 1 if older else self.place, self.holder(door)
        call = ModelCall([{"role": "user", "content": text}], [])
        heard, self.heard[door] = self.heard[door], []
        for one in heard:
            known = self.calls[one.n - 1]
            if known.holder == one.holder:
                known.holder = None
        taken = self.do(
            self.sessions.take(
                *(self.session, call, Arrival(place, holder, request, repeats)),
                stored=self.stored[door],
                heard=heard,
            )
        )
        if older:
            assert taken.outcome == "place"
            return
        n = self.repeated(text, request, repeats, place)
        if n is None and (self.over or len(self.calls) >= MOST_CALLS or self.waiting >= MOST_OPEN):
            assert taken.outcome == ("over" if self.over else "calls" if len(self.calls) >= MOST_CALLS else "at_once")
            return
        if n is None:
            self.calls.append(CallModel(text, request, place, None))
            n = len(self.calls)
        model = self.calls[n - 1]
        # A request that repeats another one without an id, and has one, gives it to the call; a new place begins anew.
        model.request = request if model.place < place else model.request or request
        model.holder, model.place = holder, place
        if hears:
            self.heard[door].append(HeardCall(n, holder))
        assert (taken.outcome, taken.n) == ("taken", n)
        assert (taken.reply or {}).get("text") == model.reply

    @rule(which=WHICH, twice=st.booleans())
    def answer(self, which: int, twice: bool) -> None:
        """The worker answers a call; its answer may be lost, and then it answers again."""
        if not self.calls:
            return
        n = which % len(self.calls) + 1
        for text in ("first", "second") if twice else ("first",):
            place = self.do(self.sessions.answer(self.claim, n, {"text": f"{n} {text}"}))
            assert place > 0
            model = self.calls[n - 1]
            model.reply = model.reply or f"{n} {text}"

    @rule(which=WHICH, twice=st.booleans(), lost=RARELY)
    def answer_with_its_turn(self, which: int, twice: bool, lost: bool) -> None:
        """The worker writes the turn and the reply of a call; another worker may have the rollout."""
        if not self.calls:
            return
        n = which % len(self.calls) + 1
        record, claim = turn_record(n), replace(self.claim, token="other", attempt=0) if lost else self.claim
        for _ in range(1 + twice):
            note = note_of(n, {"text": f"{n} with its turn"})
            writes = self.store.rollouts.journal(claim, [*self.records, record], turns=1, note=note)
            if lost:
                with pytest.raises(ClaimLost):
                    self.do(writes)
            else:
                assert self.do(writes) > 0
        if not lost:
            self.records.append(record)
            model = self.calls[n - 1]
            model.reply = model.reply or f"{n} with its turn"

    @rule(which=WHICH, taken=st.booleans(), other=RARELY)
    def hear(self, which: int, taken: bool, other: bool) -> None:
        """A connection ends; where another one holds the call meanwhile, nothing changes."""
        if not self.calls:
            return
        n = which % len(self.calls) + 1
        holder = self.calls[n - 1].holder
        if other or holder in (None, "cut"):
            self.do(self.sessions.hear(self.uid, n, self.holder(DOORS[0]), taken=taken))
        else:
            self.do(self.sessions.hear(self.uid, n, str(holder), taken=taken))
            self.calls[n - 1].holder = None if taken else "cut"

    @rule(door=st.sampled_from(DOORS))
    def restart(self, door: str) -> None:
        """A door dies and is started again; it knows nothing of what was stored."""
        self.starts[door] += 1
        self.stored[door], self.heard[door] = set(), []
        self.do(self.sessions.beat(door, str(self.starts[door])))

    @rule(really=RARELY)
    def move(self, really: bool) -> None:
        """The program is started again in another place."""
        if not really:
            return
        self.place += 1
        self.raw.hset(f"rp:rollout:{self.uid}:session", "place", self.place)

    @rule(reward=st.sampled_from([0.0, 1.0]), really=RARELY)
    def end(self, reward: float, really: bool) -> None:
        """The owner ends the session, once; another end is refused."""
        if not (really or self.over):
            return
        answer = self.do(self.sessions.end(self.uid, SessionEnd(reward=reward)))
        if not self.over:
            self.over, self.reward = True, reward
        assert answer == ("ok" if reward == self.reward else "other")

    @rule(missed=st.integers(0, 2))
    def be_told(self, missed: int) -> None:
        """A worker hears of the calls since it has last read, but for some."""
        news = [message["data"].encode() for message in iter(lambda: self.told.get_message(timeout=0), None)]
        calls = [call for uid, _, call in (one.partition(b" ") for one in news) if call]
        for seen in {0, max(0, len(self.calls) - 2)}:
            known: dict[str, Any] = {}
            told = told_calls(calls[missed:], seen, known)
            if told is not None:
                assert [call.n for call in told] == list(range(seen + 1, seen + 1 + len(told)))
                assert [call.messages[0]["content"] for call in told] == [
                    model.text for model in self.calls[seen : seen + len(told)]
                ]

    @rule()
    def forget(self) -> None:
        """A worker that reads for the first time sees everything."""
        self.last, self.known = None, {}

    @property
    def waiting(self) -> int:
        """How many calls have no reply."""
        return sum(call.reply is None for call in self.calls)

    @invariant()
    def the_worker_reads_what_was_taken(self) -> None:
        if not hasattr(self, "claim"):
            return
        found, end = self.do(self.sessions.read(self.claim, self.last, self.known))
        assert [call.n for call in found] == list(
            range(1 if self.last is None else self.last.n + 1, len(self.calls) + 1)
        )
        for call in found:
            model = self.calls[call.n - 1]
            assert call.messages[0]["content"] == model.text
            assert (call.reply and call.reply[1]["text"]) == model.reply
        assert (end is not None) is self.over
        self.last = found[-1] if found else self.last
        state = self.do(self.sessions.state(self.uid))
        assert (state.calls, state.waiting, state.place) == (len(self.calls), self.waiting, self.place)

    def teardown(self) -> None:
        """Closes all connections."""
        self.do(self.store.close())
        if hasattr(self, "told"):
            self.told.close()
        self.runner.close()
        self.raw.close()


def test_a_session_does_what_its_model_does(redis_url: str) -> None:
    SessionMachine.url = redis_url
    run_machine(
        SessionMachine,
        settings=settings(
            max_examples=examples(60, 200),
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
