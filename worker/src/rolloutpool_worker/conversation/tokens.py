"""The tokens of one conversation: what is proved, what the next prompt will be, what a reply proves.

The ledger is seeded from the trainer's own first prompt; sampled ids are kept verbatim; only new messages are
rendered. Every echoed prompt is held against the ledger before the reply is believed. CPU-bound work moves to a
thread when it is long enough to hold up the loop.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from rolloutpool_common.errors import (
    AlignmentUnverified,
    DriftRefused,
    InjectionRefused,
    TemplateRefusedTurn,
    TemplateUnusable,
    TokenizerMismatch,
    TrainerProtocolError,
)
from rolloutpool_common.protocol.options import MaskMode, OnDrift, OnInjection, RolloutSpec
from rolloutpool_common.protocol.result import StopToken
from rolloutpool_common.protocol.turn_headers import has_same_files, write_fingerprint
from rolloutpool_common.rendering import (
    ChatTokenizer,
    Delta,
    DriftLabel,
    TemplateRefused,
    classify,
    verify_prompt_contains,
)
from rolloutpool_common.tokens.comparison import EchoComparison, EchoKind
from rolloutpool_common.tokens.errors import LedgerOrder
from rolloutpool_common.tokens.ledger import TokenLedger
from rolloutpool_worker.conversation import mask_plan as masks
from rolloutpool_worker.conversation.first_prompt import FirstPrompt
from rolloutpool_worker.conversation.mask_plan import MaskPlan, TrainerKind
from rolloutpool_worker.policy import Echo, Reply

__all__ = ["EDITED", "UNVERIFIED", "TokenTrack"]

T = TypeVar("T")
_log = logging.getLogger(__name__)

UNVERIFIED = DriftLabel.UNVERIFIED.value
EDITED = DriftLabel.EDITED.value
PLAIN_RESULT = [{"role": "tool", "tool_call_id": "callabcde", "name": "add", "content": "38"}]

OFF_LOOP = 16_000
"""Characters or ids; tokenising more than that takes milliseconds."""
FULL_ECHO_EVERY = 16
DELTA_ECHO_FROM = 512
"""Ids; a shorter prompt costs less than the headers."""


class TokenTrack:
    """One rollout's ledger, with everything that reads or writes it."""

    def __init__(
        self, spec: RolloutSpec, tokenizer: ChatTokenizer, tools: list[dict[str, Any]], kind: TrainerKind, uid: str
    ) -> None:
        self.ledger = TokenLedger(tokenizer.fingerprint)
        self.kind = kind
        self.edited = False
        """Whether the next prompt is a history that the agent has edited."""
        self._spec = spec
        self._tokenizer = tokenizer
        self._tools = tools
        self._uid = uid
        self._first: FirstPrompt | None = None
        self._offered = 0
        """Length of the prefix that the reply to come may leave out."""

    # --- before a call ------------------------------------------------------------------------------------------

    async def plan_mask(self, messages: Sequence[dict[str, Any]], turn: int) -> MaskPlan:
        """Which mask lengths to try for a turn from 2 on."""
        spec = self._spec
        exact = len(self.ledger) + self._opened.offset if self.edited else self.ledger.pending_glue
        if spec.mask_mode is MaskMode.EXACT or (spec.mask_mode is MaskMode.AUTO and self.kind is TrainerKind.KEEPS_IDS):
            return MaskPlan((exact,), exact, None)
        rerender = await self._off_loop(len(self.ledger), self._count, messages)
        return masks.plan(spec.mask_mode, self.kind, exact, rerender, turn)

    def offer_prefix(self, turn: int) -> Echo | None:
        """What the trainer may leave out of its echo; None where a full one is wanted."""
        full = turn <= 2 or turn % FULL_ECHO_EVERY == 0 or turn >= self._spec.max_turns or self.edited
        self._offered = 0 if full or self._spec.v1 or self.ledger.head < DELTA_ECHO_FROM else self.ledger.head
        return Echo(self._offered, self.ledger.head_digest.hex()) if self._offered else None

    def _count(self, messages: Sequence[dict[str, Any]]) -> int | None:
        """How many tokens a re-rendering trainer counts as new; None where the template refuses the history."""
        count = self._opened.count(messages)
        return None if count is None else count - self._known()

    def _known(self) -> int:
        """How many ids of the next prompt the trainer does not take for new."""
        return 0 if self.edited else self.ledger.head

    # --- after a call -------------------------------------------------------------------------------------------

    async def ingest_reply(
        self,
        reply: Reply,
        messages: Sequence[dict[str, Any]],
        turn: int,
        mask: tuple[MaskPlan, int] | None,
        *,
        train: bool,
    ) -> str:
        """Holds the reply against the ledger and appends what was sampled; returns the label of the drift.

        `mask` is the plan and the length that the trainer accepted, from turn 2 on.
        """
        drift = await (self._open(reply, messages) if turn == 1 else self._compare(reply, turn, mask))
        self._check_vocabulary("token_ids", reply.token_ids, turn)
        if reply.keeps_ids is not None:
            self.kind = TrainerKind.KEEPS_IDS if reply.keeps_ids else TrainerKind.RERENDERS
        self.ledger.append_sampled(
            reply.token_ids, reply.logprobs, turn=turn, policy_version=reply.policy_version, train=train
        )
        self.edited = False
        return drift

    def resume(self, kind: TrainerKind, messages: Sequence[dict[str, Any]]) -> None:
        """After a journaled turn was replayed into the ledger; `messages` are those that the turn was asked with."""
        self.kind = kind
        self.edited = False
        if self._first is None:
            self._first = self._first_prompt(messages, self.ledger.segments[0].n)

    async def _open(self, reply: Reply, messages: Sequence[dict[str, Any]]) -> str:
        echo, spec = reply.prompt_token_ids, self._spec
        self._check_fingerprint(reply.fingerprint)
        if echo is None:
            if not spec.allow_unverified:
                raise AlignmentUnverified(f"turn 1: {AlignmentUnverified.__doc__}")
            self._first = self._first_prompt(messages, None)
            self.ledger.seed(await self._render_whole(messages, "turn 1: the prompt"))
            return UNVERIFIED
        if not echo:
            raise TrainerProtocolError("turn 1: prompt_token_ids is empty")
        if max(echo) >= self._tokenizer.vocab_size:
            raise TokenizerMismatch(
                f"turn 1: the prompt of the trainer at {spec.server_url} has id {max(echo)}, but this worker has "
                f"{self._own} for {self._tokenizer.name!r}, with {self._tokenizer.vocab_size} ids. The trainer serves "
                "another model; give `tokenizer_name` the one that it serves"
            )
        await self._off_loop(len(echo), verify_prompt_contains, self._tokenizer, echo, messages)
        self._first = self._first_prompt(messages, len(echo))
        self.ledger.seed(echo)
        return DriftLabel.NONE.value

    def _first_prompt(self, messages: Sequence[dict[str, Any]], echoed: int | None) -> FirstPrompt:
        return FirstPrompt(
            self._tokenizer, messages, echoed, tools=self._tools, template_kwargs=self._spec.template_kwargs
        )

    @property
    def _opened(self) -> FirstPrompt:
        if self._first is None:
            raise LedgerOrder("The first prompt is not known before the first reply.")
        return self._first

    def _check_fingerprint(self, theirs: str | None) -> None:
        if theirs is not None and not has_same_files(theirs, self._tokenizer.fingerprint):
            raise TokenizerMismatch(
                f"turn 1: the trainer at {self._spec.server_url} uses tokenizer/template/transformers {theirs[:200]}, "
                f"this worker has {self._own} for {self._tokenizer.name!r}; give both the same files"
            )

    @property
    def _own(self) -> str:
        return write_fingerprint(self._tokenizer.fingerprint)

    def _check_vocabulary(self, name: str, ids: Sequence[int], turn: int) -> None:
        size = self._tokenizer.vocab_size
        if ids and max(ids) >= size:
            raise TrainerProtocolError(f"turn {turn}: {name} has an id outside the tokenizer's vocabulary of {size}")

    async def _compare(self, reply: Reply, turn: int, mask: tuple[MaskPlan, int] | None) -> str:
        echo, spec, ledger = reply.prompt_token_ids, self._spec, self.ledger
        if echo is None:
            if not spec.allow_unverified:
                raise AlignmentUnverified(f"turn {turn}: {AlignmentUnverified.__doc__}")
            return UNVERIFIED
        self._check_vocabulary("prompt_token_ids", echo, turn)
        self._check_prefix(reply.prefix, echo, turn)
        verdict = ledger.compare(echo, prefix=reply.prefix)
        label: str = EDITED if self.edited else DriftLabel.NONE.value
        if verdict.kind is not EchoKind.EQUAL:
            label = await self._off_loop(
                len(ledger), lambda: classify(ledger, echo, self._tokenizer, prefix=reply.prefix).value
            )
            _log.info("rollout %s turn %d: drift %s at id %s", self._uid, turn, label, verdict.first_difference)
            self._tolerate(DriftLabel(label), verdict, turn)
        if mask is not None and spec.mask_mode is MaskMode.AUTO:
            plan, sent = mask
            masks.check_accepted(plan, sent, reply.prefix + len(echo) - self._known(), turn)
            if not self.edited:
                self.kind = masks.infer_kind(self.kind, plan, verdict.kind)
        ledger.accept_echo(echo, prefix=reply.prefix)
        return label

    def _check_prefix(self, prefix: int, echo: Sequence[int], turn: int) -> None:
        if prefix not in (0, self._offered):
            raise TrainerProtocolError(f"turn {turn}: the reply leaves out {prefix} ids, which nobody offered")
        if prefix and len(echo) >= prefix and echo[:prefix] == self.ledger.ids[:prefix]:
            raise TrainerProtocolError(f"turn {turn}: the reply says that it leaves out {prefix} ids, and has them")

    def _tolerate(self, label: DriftLabel, verdict: EchoComparison, turn: int) -> None:
        """Raises where the batch wants no rollout with such a prompt."""
        where = f"turn {turn}, id {verdict.first_difference}"
        if label is DriftLabel.INJECTED_CONTROL_TOKEN and self._spec.on_injection is OnInjection.FAIL:
            raise InjectionRefused(f"{where}: {InjectionRefused.__doc__}")
        if verdict.kind is EchoKind.FORK and self._spec.on_drift is OnDrift.FAIL:
            raise DriftRefused(f"{where}, {label}: {DriftRefused.__doc__}")

    def stop_of(self, reply: Reply) -> StopToken:
        """How the end of a turn shows in its ids."""
        if reply.token_ids and reply.token_ids[-1] in self._tokenizer.stop_ids:
            return StopToken.SAMPLED
        return StopToken.ABSENT if reply.finish_reason == "length" else StopToken.WITHHELD

    # --- new messages -------------------------------------------------------------------------------------------

    async def append(self, messages: list[dict[str, Any]], turn: int) -> None:
        """Renders the messages behind the last sampled turn, in the place of fewer of them rendered before."""
        tools = await self._shown_tools() if self._tokenizer.tools_choose_template else None
        delta = await self._off_loop(_characters(messages), self._render, messages, turn, tools)
        if self.ledger.pending_glue:
            self.ledger.accept_echo([*delta.close_ids, *delta.glue_ids], prefix=self.ledger.head)
            return
        self.ledger.append_close(delta.close_ids, turn=turn)
        self.ledger.append_glue(delta.glue_ids, turn=turn)

    def _render(self, messages: list[dict[str, Any]], turn: int, tools: list[dict[str, Any]] | None) -> Delta:
        last, kwargs = self.ledger.last_sampled_id, self._spec.template_kwargs
        try:
            return self._tokenizer.render_delta(messages, last_sampled_id=last, tools=tools, template_kwargs=kwargs)
        except TemplateRefused as refused:
            try:
                self._tokenizer.render_delta(PLAIN_RESULT, last_sampled_id=last, tools=tools, template_kwargs=kwargs)
            except TemplateRefused:
                raise TemplateUnusable(f"turn {turn}: {refused.message}") from None
            # An ordinary tool result can be rendered, so it is what the policy sampled that can't be answered.
            raise TemplateRefusedTurn(f"turn {turn}: {refused.message}") from None

    async def replace(self, messages: Sequence[dict[str, Any]], turn: int) -> None:
        """Makes an edited history the context: a new sample, whose prompt is the whole of it."""
        self.ledger.accept_echo(await self._render_whole(messages, f"turn {turn}: the edited history"))
        self.edited = True

    async def _shown_tools(self) -> list[dict[str, Any]] | None:
        first = self._opened
        if not first.looked:
            # By the length of that prompt, whatever is rendered now.
            await self._off_loop(_characters(first.messages), lambda: first.tools)
        return first.tools

    async def _render_whole(self, messages: Sequence[dict[str, Any]], what: str) -> list[int]:
        tools = await self._shown_tools()
        try:
            return await self._off_loop(
                _characters(messages),
                lambda: self._tokenizer.render_prompt(
                    messages, tools=tools, template_kwargs=self._spec.template_kwargs
                ),
            )
        except TemplateRefused as refused:
            raise TemplateUnusable(f"{what}: {refused.message}") from None

    async def _off_loop(self, size: int, function: Callable[..., T], *args: Any) -> T:
        return await asyncio.to_thread(function, *args) if size > OFF_LOOP else function(*args)


def _characters(messages: Sequence[dict[str, Any]]) -> int:
    return sum(len(message["content"]) for message in messages if isinstance(message["content"], str))
