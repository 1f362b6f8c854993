"""The calls of sessions, between the door that takes them and the worker that answers them.

1. A program calls the door. `take` stores the call in the order of arrival, or finds the one that it repeats, and has a
   worker look: the one that runs the session, or the next one that claims it.
2. The worker that runs the session is told the call (`calls.told_calls`); any other reads those that it has not seen
   (`read`). It has the policy sample, and writes turn and reply in one step (`calls.note_of`), which tells the door
   that holds the call's connection. A reply without a turn is kept by itself (`answer`).
3. The door gives the reply to the program. That the program has it, is noted with its next call; that it went away
   before, at once (`hear`). A door that dies notes nothing: its calls are known by the number of its start, which has
   gone.
4. While a call waits, its door looks after it (`look_after`) every few seconds. So what a dead worker has lost sight
   of is found, and no message between the two has to arrive. What Redis has lost, its door stores once more.
5. Between two calls a session needs no worker: it is given back to the queue, with a delay that the next call ends
   (`idle`).

What each call was decided by is stored with it: how many replies there were when it came. So a worker that reads the
calls from the first one comes to the same lines of talk as the one before it.
"""

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import orjson

from rolloutpool_common.capabilities.harness.calls import HeardCall, ModelCall, StoredCall, stored_call
from rolloutpool_common.capabilities.harness.keys import make_key, place_of
from rolloutpool_common.capabilities.harness.wire import HarnessChoice, SessionEnd
from rolloutpool_common.errors import RolloutPoolError
from rolloutpool_common.protocol.messages import text_of
from rolloutpool_common.store import Claim, ClaimLost, Store, keys
from rolloutpool_common.store.answers import named

GONE_MS = 5000
"""After so long without a beat a door's calls count as cut."""
Outcome = Literal["taken", "gone", "over", "place", "calls", "at_once", "bytes", "forgotten"]


class CallsForgotten(RolloutPoolError):
    """Redis was started again, and has lost a call of the session."""


@dataclass(frozen=True)
class Arrival:
    """How a call came to a door."""

    place: int
    """The place that its key is for."""
    holder: str
    """`{address} {start}` of the door, and a number of the connection."""
    request_id: str = ""
    """By which its client knows the request over repetitions; empty without one."""
    repeats: bool = False
    """Whether its client says that this is a repetition."""


@dataclass(frozen=True)
class TakenCall:
    """What became of a call at the door."""

    outcome: Outcome
    n: int = 0
    reply: dict[str, Any] | None = None
    asked: str = ""
    """What makes calls equal, as a digest."""
    woken: bool = False
    """Whether it has put its session's ticket into an outbox, from which it is to be published."""


@dataclass(frozen=True)
class TakenPlace:
    """A place that a runner has."""

    uid: str
    number: int
    """From 1."""
    deaths: int
    """How often the program died before."""
    losses: int
    """How often its runner was lost, or stopped, with it."""
    token: str


@dataclass(frozen=True)
class OpenSession:
    """What a door knows of a session: it does not change."""

    uid: str
    choice: HarnessChoice
    secret: bytes
    prompt: str
    """What the rollout's last message says."""

    def place_of(self, key: str) -> int | None:
        """Returns the place that a key is for; None where it is none of this session's."""
        return place_of(self.secret, self.uid, key)


@dataclass(frozen=True)
class SessionState:
    """How far a session is."""

    place: int
    calls: int
    waiting: int
    end: SessionEnd | None


class Sessions:
    """The sessions of one store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._connection = store.connection

    # --- by the API and the door ---------------------------------------------------------------------------------

    async def open(self, uid: str) -> OpenSession | None:
        """Reads what a rollout says of its harness; None where it is unknown or has none."""
        split = keys.split_uid(uid)
        if split is None:
            return None
        batch_id, index = split
        (shared, secret), own = await asyncio.gather(
            self._connection.command("HMGET", keys.batch(batch_id), "shared", "harness"),
            self._connection.command("HGET", keys.batch(batch_id, "items"), index),
        )
        if shared is None or secret is None or own is None:
            return None
        options = {**orjson.loads(shared), **orjson.loads(own)}
        if options.get("harness") is None:
            return None
        plain = self._store.secrets.decrypt(secret.decode())
        choice = HarnessChoice.model_validate(options["harness"])
        return OpenSession(uid, choice, bytes.fromhex(plain), text_of(options["messages"][-1]))

    async def state(self, uid: str) -> SessionState:
        """Reads how far a session is; one without a call has its first state."""
        place, calls, waiting, over = await self._connection.command(
            "HMGET", keys.rollout(uid, "session"), "place", "calls", "open", "over"
        )
        end = None if over is None else SessionEnd.model_validate_json(over)
        return SessionState(int(place or 1), int(calls or 0), int(waiting or 0), end)

    async def key(self, session: OpenSession) -> str:
        """Makes the key for the present place of a session."""
        return make_key(session.secret, session.uid, (await self.state(session.uid)).place)

    async def take(
        self,
        session: OpenSession,
        call: ModelCall,
        came: Arrival,
        *,
        stored: set[str] | None = None,
        heard: Sequence[HeardCall] = (),
    ) -> TakenCall:
        """Stores a call, or finds the one that it repeats.

        Args:
            session: Whose program calls.
            call: What it asks.
            came: How it came to the door.
            stored: Digests of what this door knows to be stored of the session; it learns what this call has stored.
            heard: Earlier calls of the session that this door has given away to the last byte, as `hear` notes them.
        """
        split = keys.split_uid(session.uid)
        if split is None:
            return TakenCall("gone")
        stored = set() if stored is None else stored
        asked, record, parts = _spelled(call)
        new = {digest: text for digest, text in parts if digest not in stored}
        said = [text for pair in new.items() for text in pair]
        choice = session.choice
        answer = named(
            await self._connection.script(
                "take_call",
                *(*split, came.place, asked, came.request_id, int(came.repeats), came.holder),
                *(choice.max_calls, choice.max_calls_at_once, int(choice.max_mb * 1_000_000)),
                *(" ".join(f"{n} {by}" for n, by in heard), record, len(stored), *said),
            )
        )
        outcome: Outcome = answer["outcome"].decode()
        if outcome == "forgotten":
            stored.clear()
            return await self.take(session, call, came, stored=stored, heard=heard)
        if outcome != "taken":
            return TakenCall(outcome)
        stored.update(new)
        return TakenCall(outcome, answer["n"], _reply(answer["reply"]), asked, woken=bool(answer["woken"]))

    async def history(self, uid: str, n: int) -> list[dict[str, Any]] | None:
        """Reads the messages of a call, and its reply behind them; None where it has none that says anything."""
        call, raw = await asyncio.gather(
            self._connection.command("LINDEX", keys.rollout(uid, "calls"), n - 1),
            self._connection.command("HGET", keys.rollout(uid, "replies"), n),
        )
        reply = _reply(raw or b"")
        # No reply has the number 0, whose call would be the last one.
        if n < 1 or call is None or reply is None or "message" not in reply:
            return None
        digests = orjson.loads(call.split(b" ", 2)[2])["said"]
        said = await self._connection.command("HMGET", keys.rollout(uid, "said"), *digests)
        if None in said:
            return None
        message = reply["message"]
        own = {"content": message["content"] or None, "tool_calls": message["tool_calls"] or None}
        return [*map(orjson.loads, said), {"role": "assistant", **own, "tool_call_id": None}]

    async def replies(self, uid: str, numbers: Sequence[int]) -> list[dict[str, Any] | None]:
        """Reads the replies to some calls; None where there is none that says anything."""
        found = await self._connection.command("HMGET", keys.rollout(uid, "replies"), *numbers)
        replies = [_reply(raw or b"") for raw in found]
        return [None if reply is None or "message" not in reply else reply for reply in replies]

    async def look_after(self, uid: str, call: TakenCall) -> TakenCall:
        """Looks after a call that waits; it is `over` where it can be answered no more, or `forgotten` by Redis."""
        split = keys.split_uid(uid)
        answer = named(await self._connection.script("wait_call", *(split or ("", 0)), call.n, call.asked))
        outcomes: dict[bytes, Outcome] = {b"over": "over", b"forgotten": "forgotten"}
        return replace(call, outcome=outcomes.get(answer["outcome"], "taken"), reply=_reply(answer["reply"]))

    async def hear(self, uid: str, n: int, holder: str, *, taken: bool) -> None:
        """Notes whether the program has its reply, or its connection was cut before."""
        await self._connection.script("hear_call", uid, n, holder, "taken" if taken else "cut")

    async def end(self, uid: str, how: SessionEnd) -> Literal["ok", "other", "over", "gone"]:
        """Ends a session; the same end may come again."""
        split = keys.split_uid(uid)
        answer = await self._connection.script("end_session", *(split or ("", 0)), how.model_dump_json())
        ended: Literal["ok", "other", "over", "gone"] = answer.decode()
        return ended

    async def beat(self, address: str, start: str) -> None:
        """Says that a door is there, by the number of its start."""
        await self._connection.command("SET", f"{keys.PREFIX}door:{address}", start, "PX", GONE_MS)

    async def leave(self, address: str) -> None:
        """Says that a door is gone: the calls that it held are cut."""
        await self._connection.command("DEL", f"{keys.PREFIX}door:{address}")

    # --- by the runner -------------------------------------------------------------------------------------------

    async def take_place(self, token: str, lease_s: float) -> TakenPlace | None:
        """Takes the place that is wanted for the longest time, if one is."""
        answer = named(await self._connection.script("take_place", token, int(lease_s * 1000)))
        uid = answer["uid"].decode()
        return TakenPlace(uid, answer["place"], answer["deaths"], answer["losses"], token) if uid else None

    async def hold_place(self, place: TakenPlace, lease_s: float) -> bool:
        """Keeps a place; false where its program has to end."""
        lease = place.number, place.token, int(lease_s * 1000)
        return bool(await self._connection.script("hold_place", place.uid, *lease))

    async def leave_place(
        self, place: TakenPlace, how: SessionEnd | None, counts: Literal["deaths", "losses", "nothing"] = "deaths"
    ) -> bool:
        """Ends a place with its session; None has the program started once more, which counts as one of these."""
        split = keys.split_uid(place.uid) or ("", 0)
        text = "" if how is None else how.model_dump_json()
        lease = place.number, place.token
        return bool(await self._connection.script("leave_place", *split, *lease, text, counts))

    # --- by the worker -------------------------------------------------------------------------------------------

    async def read(
        self, claim: Claim, last: StoredCall | None, known: dict[str, Any]
    ) -> tuple[list[StoredCall], SessionEnd | None]:
        """Reads the calls behind the last one that was seen, and how the session was ended, if it was.

        `known` keeps what was said, by digest, over several reads. Raises `CallsForgotten` where the last one is lost.
        """
        seen, record = (0, b"") if last is None else (last.n, last.record)
        answer = named(await self._connection.script("read_calls", claim.batch_id, claim.index, seen, record))
        if answer["forgotten"]:
            raise CallsForgotten
        end = SessionEnd.model_validate_json(answer["over"]) if answer["over"] else None
        said = iter(answer["said"])
        known.update((digest.decode(), orjson.loads(text)) for digest, text in zip(said, said, strict=True) if text)
        pairs = zip(answer["calls"], answer["replies"], strict=True)
        calls = [stored_call(n, call, known, _placed(reply)) for n, (call, reply) in enumerate(pairs, seen + 1)]
        found = [call for call in calls if call is not None]
        if len(found) < len(calls):
            # It has ended meanwhile, and what was said has gone with its end.
            raise ClaimLost
        return found, end

    async def answer(self, claim: Claim, n: int, reply: Mapping[str, Any]) -> int:
        """Keeps the reply to a call; returns its place among the replies, 0 where the claim is lost."""
        answer = await self._connection.script(
            "answer_call", claim.batch_id, claim.index, claim.token, n, orjson.dumps(reply)
        )
        return int(answer)

    async def want_place(self, claim: Claim, *, reuse: bool) -> None:
        """Has a runner start the session's program, if none was asked before."""
        await self._connection.script("want_place", claim.batch_id, claim.index, claim.token, int(reuse))

    async def places_of(self, uid: str, calls: int) -> tuple[int, list[int]]:
        """Returns the number of the present place, and in which place each call was made last."""
        names = ["place", *(f"place:{n}" for n in range(1, calls + 1))]
        found = await self._connection.command("HMGET", keys.rollout(uid, "session"), *names)
        place, *others = [int(one or 1) for one in found]
        return place, others

    async def idle(self, claim: Claim, seen: int, most_s: float) -> float:
        """Lets a session wait without a worker; returns for how many seconds, negative if there is something to do."""
        waits = await self._connection.script(
            "idle_session", claim.batch_id, claim.index, claim.token, seen, int(most_s * 1000)
        )
        return float(waits) / 1000


def _spelled(call: ModelCall) -> tuple[str, bytes, list[tuple[str, bytes]]]:
    """Returns what makes calls equal, as a digest; the call as it is stored; and its parts, each with its digest."""
    parts = [orjson.dumps(message) for message in call.messages]
    parts += [orjson.dumps(call.tools), orjson.dumps(call.sent, option=orjson.OPT_SORT_KEYS)]
    *said, tools, sent = digests = [_digest(part) for part in parts]
    asked: dict[str, Any] = {"said": said, "tools": tools}
    if call.sampling:
        asked["sampling"] = call.sampling
    if call.after is not None:
        asked["after"] = call.after
    if call.counts:
        asked["counts"] = True
    record = orjson.dumps({**asked, "sent": sent})
    return _digest(orjson.dumps(asked)), record, list(zip(digests, parts, strict=True))


def _digest(data: bytes) -> str:
    # Half of blake2b's time, as processors have instructions for it; a door hashes the whole history of each call.
    return hashlib.sha256(data).hexdigest()[:24]


def _placed(raw: bytes) -> tuple[int, dict[str, Any]] | None:
    """Reads a reply with its place in front."""
    if not raw:
        return None
    place, text = raw.split(b" ", 1)
    return int(place), orjson.loads(text)


def _reply(raw: bytes) -> dict[str, Any] | None:
    found = _placed(raw)
    return None if found is None else found[1]
