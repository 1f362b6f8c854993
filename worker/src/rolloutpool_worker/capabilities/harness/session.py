"""SessionRun: the agent of a rollout whose program calls the policy itself.

1. Calls are read in the order in which they came. Each continues a line of talk or begins one (`lines`), which is a
   branch of the rollout with a ledger of its own.
2. Its turn is sampled in a task of its own, so that lines are in flight at once; calls of one line follow each other,
   because a program can only continue what was answered.
3. The reply is kept in the step that writes the turn into the journal, so a program never hears what the pool could
   forget. What the program has said is stored with its call, so it is written there with the turn, too.
4. After a crash the next worker reads all calls again. Those with a reply were sampled, so they are replayed from the
   journal, in their order; the others are asked.
5. With no call to answer for `LINGER_SECONDS`, or at once where many sessions linger in its process, the worker lets go
   of the session (`SessionIdle`). The next call brings it back. One that has been idle for too long ends as lost; one
   that its owner has ended completes.
"""

import asyncio
import json
import math
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from rolloutpool_common.capabilities.harness.calls import StoredCall, note_of, told_calls
from rolloutpool_common.capabilities.harness.given_calls import given_id
from rolloutpool_common.capabilities.harness.sessions import CallsForgotten, Sessions
from rolloutpool_common.capabilities.harness.wire import HarnessChoice, SessionEnd
from rolloutpool_common.errors import InfraFault, PromptTooLong
from rolloutpool_common.outcomes import Boundary, Category, FinishReason
from rolloutpool_common.rendering import TemplateRefused
from rolloutpool_common.store import ClaimLost
from rolloutpool_worker.capabilities.harness.lines import NO_TOOLS, Lines, TalkLine
from rolloutpool_worker.conversation.branch import Branch, Policy, SampledTurn
from rolloutpool_worker.conversation.conversation import Conversation
from rolloutpool_worker.conversation.store_retry import retry_store
from rolloutpool_worker.drain import Drain, Drained
from rolloutpool_worker.ending import GoesElsewhere
from rolloutpool_worker.environments import SessionScore

T = TypeVar("T")

LINGER_SECONDS = 5.0
"""How long a worker keeps a session that has no call to answer."""
MOST_LINGERING = 16
"""Sessions of one process that are kept like that. Thousands that begin at once must not take its slots in turns."""
AGAIN_SECONDS = 0.02
DEADLINE_SECONDS = 15.0
"""So long before its deadline a session comes back to a worker, which then delivers what was sampled."""
LOOK_SECONDS = 2.0
"""After so long a session looks for new calls, where nobody has told it of any."""
FORGOTTEN_SECONDS = 5.0
"""For so long a call that Redis has lost may be missing: the door that holds it stores it once more."""


class SessionIdle(GoesElsewhere):
    """The session waits for its program's next call, without a worker."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds


class HarnessLost(InfraFault):
    """The program was given up, or made no call for too long and nobody ended its session."""

    boundary = Boundary.AGENT
    category = Category.HARNESS_LOST
    retryable = False


@dataclass
class Lingering:
    """How many sessions of a process linger."""

    now: int = 0


class SessionRun:
    """One attempt at one session."""

    def __init__(
        self,
        conversation: Conversation,
        choice: HarnessChoice,
        sessions: Sessions,
        drain: Drain,
        lingering: Lingering,
    ) -> None:
        self.conversation = conversation
        self.lines = Lines()
        self.branches: dict[TalkLine, Branch] = {}
        self.news = asyncio.Event()
        """Set when something has happened: a call has come, a turn has ended, or the worker drains."""
        self._told: list[bytes] = []
        """New calls that it was told and has not begun."""
        self.look()
        self._last: StoredCall | None = None
        """The last call that it has read."""
        self._replies = 0
        """How many calls it knows to have a reply."""
        self.asked: list[Mapping[str, Any]] = []
        """How each of them was asked, besides its prompt."""
        self._choice = choice
        self._sessions = sessions
        self._drain = drain
        self._lingering = lingering
        self._claim = conversation.claim
        left = self._claim.deadline_in_s
        self._deadline = math.inf if left is None else time.monotonic() + left
        self._said: dict[str, Any] = {}
        self._policies: dict[str, Policy] = {}
        self._turns: set[asyncio.Task[None]] = set()
        self._end: SessionEnd | None = None
        """How it was ended, once somebody has said so."""

    def hear(self, call: bytes) -> None:
        """Hears of a new call, or, without one, that there is something to look for."""
        if not call:
            return self.look()
        self._told.append(call)
        self.news.set()

    def look(self) -> None:
        """Has it look for what is new."""
        self._looks = True
        self.news.set()

    async def run(self) -> FinishReason:
        """Answers calls until the session has ended."""
        reuse, cuts = self._choice.on_death == "replay", False
        if not self._choice.external:
            await self._retry(lambda: self._sessions.want_place(self._claim, reuse=reuse))
        drains = asyncio.ensure_future(self._drain.wait())
        drains.add_done_callback(self._happened)
        try:
            while True:
                if self.news.is_set():
                    await self._begin_new()
                for task in [task for task in self._turns if task.done()]:
                    self._turns.discard(task)
                    task.result()
                if self._is_full and not self._choice.external:
                    # Its program would only die of the refusals. A grader says what the rollout is worth.
                    cuts = True
                    return FinishReason.MAX_TOKENS
                if self._turns:
                    if not await self._happens(LOOK_SECONDS):
                        self.look()
                elif self._end is not None:
                    return self._ended(self._end)
                elif not await self._rest():
                    return FinishReason.MAX_TOKENS
        except (asyncio.CancelledError, ClaimLost):
            cuts = True
            raise
        finally:
            drains.cancel()
            await self._stop(cuts=cuts)

    @property
    def seen(self) -> int:
        """How many calls it has read."""
        return 0 if self._last is None else self._last.n

    @property
    def _is_full(self) -> bool:
        """Whether it has sampled all that it may. Whoever ends an external session can still say what it is worth."""
        return self.conversation.sampled_tokens >= self._claim.spec.max_tokens_total

    async def _begin_new(self) -> None:
        """Begins the turns of all calls that were not read yet; waits for those that are only replayed."""
        self.news.clear()
        told, self._told = self._told, []
        looks, self._looks = self._looks, False
        calls = None if looks else told_calls(told, self.seen, self._said)
        if calls is None:
            calls, self._end = await self._read()
        for call in calls:
            await self._hear_replies(call.replied)
            self._last = call
            self.asked.append({} if call.counts else call.sent)
            if call.counts:
                if call.reply is None:
                    self._begin(self._count(call))
                else:
                    self._replies += 1
                continue
            tools = call.tools_digest if call.tools else NO_TOOLS
            found = self.lines.find(call.n, call.replied, call.messages, tools, call.digests, call.after)
            branch, policy = self.branches.get(found.line), await self._policy_of(call)
            if branch is None:
                branch = self.branches[found.line] = self.conversation.open_branch(found.new, policy)
            branch.policy = policy
            turn = self._turn(call, found.line, branch, [] if found.begins else found.new)
            task = self._begin(turn)
            if call.reply is not None:
                await asyncio.wait([task])

    async def _read(self) -> tuple[list[StoredCall], SessionEnd | None]:
        """Reads what is new; raises `HarnessLost` where Redis has lost for good what was read before."""
        end = time.monotonic() + FORGOTTEN_SECONDS
        while True:
            try:
                return await self._retry(lambda: self._sessions.read(self._claim, self._last, self._said))
            except CallsForgotten as error:
                if time.monotonic() > end:
                    raise HarnessLost(error.message) from None
            await asyncio.sleep(LOOK_SECONDS / 8)

    async def _hear_replies(self, many: int) -> None:
        """Waits until it knows of so many replies.

        A program has a reply as soon as Redis has it, and may go on from it before the turn here has heard that it is
        kept. Its next call would then continue a line that does not end with the reply yet, and begin another one.
        """
        while self._replies < many and (left := [task for task in self._turns if not task.done()]):
            done, _ = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()

    def _begin(self, answering: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Has a call answered beside the others."""
        task = asyncio.ensure_future(self._replied(answering))
        task.add_done_callback(self._happened)
        self._turns.add(task)
        return task

    async def _replied(self, answering: Coroutine[Any, Any, None]) -> None:
        """Has a call answered, and counts its reply."""
        await answering
        self._replies += 1

    async def _policy_of(self, call: StoredCall) -> Policy:
        """Returns the policy that is told the call's tools, and samples as the call says."""
        key = f"{call.tools_digest} {json.dumps(call.sampling, sort_keys=True)}"
        if key not in self._policies:
            self._policies[key] = await self.conversation.policy_with(call.tools, call.sampling)
        return self._policies[key]

    async def _turn(self, call: StoredCall, line: TalkLine, branch: Branch, new: list[dict[str, Any]]) -> None:
        """Samples the turn of a call, and keeps the reply."""
        if call.reply is not None and (call.reply[1].get("too_long") == "begins" or "full" in call.reply[1]):
            return
        if call.reply is None and self._is_full:
            await self._keep(call, {"full": True})
            return
        if new:
            await branch.append_messages(new, stored=True)
        try:
            sampled = await branch.sample(note=lambda turn: note_of(call.n, self._reply(call, branch, turn)))
        except PromptTooLong:
            # The program can say less, and its other lines go on. The journal has nothing of this one.
            await self._keep(call, {"too_long": "begins"})
            return
        place = sampled.noted or await self._keep(call, self._reply(call, branch, sampled))
        if not _ends_line(sampled):
            self.lines.answered(line, call.n, place, sampled.message)

    async def _count(self, call: StoredCall) -> None:
        """Answers how many tokens a prompt has, without reasoning that the program does not send back."""
        policy = await self._policy_of(call)
        try:
            reply: dict[str, Any] = {"counted": await policy.open_tokens().count(call.messages)}
        except TemplateRefused as refused:
            reply = {"refused": refused.message}
        await self._keep(call, reply)

    async def _keep(self, call: StoredCall, reply: dict[str, Any]) -> int:
        """Keeps a reply, unless it was kept before; returns its place among the replies."""
        if call.reply is not None:
            return call.reply[0]
        place = await self._retry(lambda: self._sessions.answer(self._claim, call.n, reply))
        if not place:
            raise ClaimLost
        return place

    def _reply(self, call: StoredCall, branch: Branch, sampled: SampledTurn) -> dict[str, Any]:
        """Makes the reply as doors give it to programs."""
        if _ends_line(sampled):
            # The line has a turn without a token. The program goes on with another history.
            return {"too_long": "ends"}
        message: Mapping[str, Any] = sampled.message
        calls = [
            {
                "id": given_id(call.n, place),
                "type": "function",
                "function": {"name": one["function"]["name"], "arguments": _as_text(one["function"]["arguments"])},
            }
            for place, one in enumerate(message.get("tool_calls") or ())
        ]
        reasoning = message.get("reasoning_content")
        return {
            "message": {
                "role": "assistant",
                "content": message.get("content"),
                "tool_calls": calls,
                **({"reasoning_content": reasoning} if isinstance(reasoning, str) and reasoning else {}),
            },
            "finish_reason": sampled.finish_reason,
            "prompt_tokens": len(branch.tokens.ledger) - sampled.sampled,
            "sampled_tokens": sampled.sampled,
        }

    def _ended(self, end: SessionEnd) -> FinishReason:
        """Ends as its owner, or its runner, has said."""
        if end.failed is not None:
            raise HarnessLost(end.failed)
        if not self.lines.all and not self._claim.spec.allow_untrained:
            raise HarnessLost("its program ended without a call of its model at the session's address")
        if end.reward is not None:
            self.conversation.score = SessionScore(end.reward, end.reward_parts)
        return FinishReason.MAX_TOKENS if self._is_full else FinishReason.STOP

    async def _rest(self) -> bool:
        """Waits a while for a call, and lets go of the session where there is none; false where nobody will end it."""
        seconds = LINGER_SECONDS if self._lingering.now < MOST_LINGERING else 0.0
        self._lingering.now += 1
        try:
            # The drain may have been heard of before, while a turn ran.
            happens = self._drain.begun or await self._happens(min(seconds, self._choice.idle_seconds))
        finally:
            self._lingering.now -= 1
        if self._drain.begun:
            raise Drained
        if happens:
            return True
        claim, most = self._claim, self._choice.idle_seconds
        waits = await self._retry(lambda: self._sessions.idle(claim, self.seen, most))
        # In the queue it would expire without what was sampled.
        before_deadline = self._deadline - time.monotonic() - DEADLINE_SECONDS
        if waits > 0 and before_deadline > 0:
            raise SessionIdle(min(waits, before_deadline))
        if waits == 0 and self._is_full:
            return False
        if waits == 0:
            raise HarnessLost("its program made no call for harness.idle_seconds, and nobody ended its session")
        # There is a call; or its deadline comes; or the rollout has ended and its calls are gone, of which this attempt
        # hears soon.
        await asyncio.sleep(AGAIN_SECONDS)
        self.look()
        return True

    async def _happens(self, seconds: float) -> bool:
        """Waits until something happens; tells whether it did, within so many seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.news.wait()
        return self.news.is_set()

    def _happened(self, _: "asyncio.Future[None]") -> None:
        self.news.set()

    async def _retry(self, call: Callable[[], Awaitable[T]]) -> T:
        return await retry_store(self._drain, self._claim.uid, call)

    async def _stop(self, *, cuts: bool) -> None:
        """Ends the turns that still run. They go on to their ends first, unless they are to be cut off.

        Of a turn that is cut off nobody knows whether the policy has sampled it, and the next attempt would ask again.
        """
        if not self._turns:
            return
        try:
            if not cuts:
                await asyncio.wait(self._turns)
        finally:
            for task in self._turns:
                task.cancel()
            await asyncio.wait(self._turns)
            for task in self._turns:
                # Somebody has to look at it; the first one that failed has ended the session already.
                _ = task.cancelled() or task.exception()


def _ends_line(sampled: SampledTurn) -> bool:
    return not sampled.sampled and sampled.finish_reason == "length"


def _as_text(arguments: Any) -> str:
    # Not orjson, which refuses whole numbers of more than 64 bits.
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
