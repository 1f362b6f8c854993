"""A conversation without Redis and HTTP: a store in memory, and a trainer that keeps sampled ids."""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import orjson
from tests.support.tools import tool_host

from rolloutpool_common.protocol.journal import JournalRecord, PlannedTurn, TrainerKind, encode_record, parse_record
from rolloutpool_common.protocol.options import RolloutSpec
from rolloutpool_common.protocol.workers import WorkerRole
from rolloutpool_common.rendering import ChatTokenizer
from rolloutpool_common.store import Claim, ClaimLost, Store
from rolloutpool_worker.conversation.beginning import Beginning
from rolloutpool_worker.conversation.branch import RunningAttempt
from rolloutpool_worker.conversation.callback_policy import CallbackPolicy
from rolloutpool_worker.conversation.conversation import Conversation
from rolloutpool_worker.conversation.history import History
from rolloutpool_worker.conversation.journal import Journal
from rolloutpool_worker.conversation.tokens import TokenTrack
from rolloutpool_worker.drain import Drain, RolloutStop
from rolloutpool_worker.policy.body import MessageBytes, TurnBody
from rolloutpool_worker.policy.callback import CallbackChannel, TurnCall
from rolloutpool_worker.policy.reply import Reply
from rolloutpool_worker.tools import TOOLS, ToolRunner

HOST = tool_host()
QUESTION = [{"role": "user", "content": "Calculate 15 + 23"}]


def claim_of(**changes: Any) -> Claim:
    """A first claim of a rollout; `changes` are the claim's fields, or those of its spec."""
    spec = {
        "rollout_id": "r",
        "server_url": "http://trainer:8081",
        "messages": QUESTION,
        "tokenizer_name": "t",
        "sampling_params": {},
    }
    fields: dict[str, Any] = {
        "uid": "b-0",
        "batch_id": "b",
        "index": 0,
        "worker_id": "w1",
        "role": WorkerRole.SHARED,
        "token": "cafe",
        "attempt": 1,
        "crashes": 0,
        "retries": 0,
        "deferrals": 0,
        "journal_length": 0,
        "clean": True,
        "group": None,
        "deadline_in_s": None,
        "queued_ms": 0.0,
        "more_waiting": False,
    }
    of_claim = {name: value for name, value in changes.items() if name in fields}
    of_spec = {name: value for name, value in changes.items() if name not in fields}
    return Claim(**{**fields, **of_claim}, spec=RolloutSpec.model_validate({**spec, **of_spec}))


def spec_of(**changes: Any) -> RolloutSpec:
    """The spec of that rollout."""
    return claim_of(**changes).spec


def reply_of(prompt: list[int] | None, ids: list[int], **changes: Any) -> Reply:
    """A trainer's reply with these ids, which says nothing of itself."""
    fields: dict[str, Any] = {
        "message": {"role": "assistant", "content": "It is 38."},
        "finish_reason": "stop",
        "token_ids": ids,
        "logprobs": [-0.5] * len(ids),
        "prompt_token_ids": prompt,
        "prefix": 0,
    }
    silent: dict[str, Any] = dict.fromkeys(("policy_version", "keeps_ids", "fingerprint"))
    return Reply(**{**silent, **fields, **changes})


class MemoryRollouts:
    """The part of the store that a journal writes to."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.turns = 0
        self.noted = 0
        self.idempotent = False
        """Whether the trainer's promise was noted."""
        self.lost = False
        """Whether the claim is another worker's now."""
        self.room: float = float("inf")
        """How many records are written before a deadline passes."""

    @property
    def rollouts(self) -> "MemoryRollouts":
        """The store's room of this name."""
        return self

    @property
    def model_calls(self) -> "MemoryRollouts":
        """The store's room of this name."""
        return self

    @property
    def records(self) -> list[JournalRecord]:
        """What another worker would read."""
        return [parse_record(data) for data in self.written]

    async def note(self, claim: Claim) -> None:
        """Notes a model call; here a claim is lost only at the writes that follow."""
        del claim
        self.noted += 1

    async def is_idempotent(self, claim: Claim) -> bool:
        """Whether the trainer's promise was noted."""
        del claim
        return self.idempotent

    async def note_idempotent(self, claim: Claim) -> None:
        """Notes that the trainer is idempotent."""
        del claim
        self.idempotent = True

    async def journal(
        self, claim: Claim, records: Sequence[JournalRecord], *, turns: int, note: bytes = b"", two: bool = False
    ) -> None:
        """Keeps the records that are missing."""
        del claim, note, two
        if self.lost:
            raise ClaimLost
        if len(records) > self.room:
            raise asyncio.CancelledError
        self.written += [encode_record(record) for record in records[len(self.written) :]]
        self.turns = turns

    async def restore(self, claim: Claim, records: Sequence[JournalRecord] | None, *, turns: int) -> bool:
        """Whether the claim holds."""
        del claim, records, turns
        return not self.lost


class _Channel:
    """Answers each turn with the next text, and echoes what the ledger expects."""

    def __init__(self, tokenizer: ChatTokenizer, tokens: list[TokenTrack], spec: RolloutSpec) -> None:
        self._repeatable = spec.may_repeat
        self._tokenizer = tokenizer
        self._tokens = tokens
        self.answers: defaultdict[int, list[dict[str, Any] | Exception]] = defaultdict(list)
        """By branch."""
        self.calls: list[TurnCall] = []
        self.keeps_ids: bool | None = True
        """What the trainer says of itself."""

        self.promised = False
        """Whether the trainer has said that it may be asked again."""
        self.idempotent: bool | Exception = False
        """What it says when it is asked."""

    @property
    def may_repeat(self) -> bool:
        """As far as options and earlier answers tell."""
        return self.promised or self._repeatable

    async def hold(self, call: TurnCall) -> None:
        """A test may put something here that waits before a call is answered."""

    async def ask_idempotent(self) -> bool:
        """Asks the trainer, which may not be there."""
        if isinstance(self.idempotent, Exception):
            raise self.idempotent
        return self.idempotent

    def is_news(self, batch_id: str) -> bool:
        """Whether its promise is to be noted."""
        del batch_id
        return self.promised

    def body(self, messages: MessageBytes, zeros: int) -> TurnBody:
        """As the real channel, with fewer keys."""
        return messages.body(b'],"response_mask":' + orjson.dumps([0] * zeros or None) + b"}")

    async def sample(self, call: TurnCall) -> Reply:
        """The next answer, or its error."""
        self.calls.append(call)
        await self.hold(call)
        answer = self.answers[call.branch].pop(0)
        if isinstance(answer, Exception):
            raise answer
        message = {**answer}
        ids = self._tokenizer.encode(message.pop("sampled", message["content"]) + "<|im_end|>")
        messages = orjson.loads(call.body.data)["messages"]
        ledger = self._tokens[call.branch].ledger
        return Reply(
            message={"role": "assistant", "content": None, "tool_calls": None, "tool_call_id": None, **message},
            finish_reason="stop",
            token_ids=ids,
            logprobs=[-0.5] * len(ids),
            prompt_token_ids=self._tokenizer.render_prompt(messages) if call.turn == 1 else ledger.ids,
            prefix=0,
            policy_version=None,
            keeps_ids=self.keeps_ids,
            fingerprint=None,
        )


@dataclass
class SomeBranch:
    """What a policy reads of a branch."""

    history: History
    tokens: TokenTrack
    planned: PlannedTurn | None = None
    beginning: Beginning | None = None
    number: int = 0

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The transcript."""
        return self.history.messages


class InsideConversation:
    """One attempt: the conversation, and all that it talks to."""

    def __init__(
        self, tokenizer: ChatTokenizer, store: MemoryRollouts | None = None, claim: Claim | None = None
    ) -> None:
        """An attempt that continues what `store` has."""
        self.store = store or MemoryRollouts()
        self.claim = claim or claim_of()
        self.drain = Drain()
        self.stop = RolloutStop(self.drain)
        self.written = 0
        self.tracks: list[TokenTrack] = []
        """The tokens of all branches."""
        self.channel = _Channel(tokenizer, self.tracks, self.claim.spec)
        self._tokenizer = tokenizer
        self.journal = Journal(
            cast(Store, self.store), self.claim, self.store.records, self.drain, after_write=self._count
        )
        tools = {tool.name: tool for tool in TOOLS.values()}
        self.conversation = Conversation(
            RunningAttempt(self.claim, self.journal, self.stop),
            policy=CallbackPolicy(cast(CallbackChannel, self.channel), self._open_tokens),
            tools=ToolRunner(tools, lenient=False, host=HOST),
        )

    def answer(self, *answers: str | dict[str, Any] | Exception, branch: int = 0) -> None:
        """What the policy does in a branch's next turns: says a text, says a message, fails.

        A message may have the key `sampled`: the text that was sampled, where the message is another one.
        """
        self.channel.answers[branch] += [{"content": given} if isinstance(given, str) else given for given in answers]

    @property
    def tokens(self) -> TokenTrack:
        """Those of the main branch."""
        return self.tracks[0]

    def _open_tokens(self) -> TokenTrack:
        self.tracks.append(TokenTrack(self.claim.spec, self._tokenizer, [], TrainerKind.UNKNOWN))
        return self.tracks[-1]

    def _count(self) -> None:
        self.written += 1
