"""The tokens of one conversation: what is proved, what the next prompt will be, what a reply adds.

The ledger begins with the trainer's own first prompt. Sampled ids are kept verbatim; only new messages are rendered.
Every echo is checked (`echo.py`) before the reply is used.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rolloutpool_common.errors import MaskDisproved, TemplateRefusedTurn, TemplateUnusable
from rolloutpool_common.protocol.journal import MaskPlan, PlannedTurn, TrainerKind
from rolloutpool_common.protocol.options import MaskMode, RolloutSpec
from rolloutpool_common.protocol.result import StopToken
from rolloutpool_common.protocol.turn_headers import Echo
from rolloutpool_common.rendering import SAMPLED_TAIL, WRITTEN_BY_OTHERS, ChatTokenizer, Delta, TemplateRefused
from rolloutpool_common.rendering.doubts import Use
from rolloutpool_common.rendering.shown_tools import find_shown_tools
from rolloutpool_common.tokens.comparison import EchoKind
from rolloutpool_common.tokens.errors import LedgerOrder
from rolloutpool_common.tokens.ledger import TokenLedger
from rolloutpool_worker.conversation import mask_plan as masks
from rolloutpool_worker.conversation.echo import AskedTurn, EchoVerifier, VerifiedEcho, proved
from rolloutpool_worker.conversation.first_prompt import FirstPrompt
from rolloutpool_worker.conversation.off_loop import OFF_LOOP, change_off_loop, off_loop, rendering_size
from rolloutpool_worker.conversation.shared_prompts import SHARED_PROMPTS
from rolloutpool_worker.conversation.trainer_kinds import Agreement
from rolloutpool_worker.policy.repeated_echo import EchoText
from rolloutpool_worker.policy.reply import Reply
from rolloutpool_worker.tools.limits import size_of

MOST_COUNTED = 1_000_000
"""Characters of new messages that are tokenised on the chance that the trainer renders again. 10 MB take 15 s."""
MOST_COMPARED = 65_536
"""Ids of a first prompt in which tools are looked for; the search is for each name and description."""
_CALL = {"id": "callabcde", "type": "function", "function": {"name": "add", "arguments": {"a": 15}}}
PLAIN_CALL: list[dict[str, Any]] = [
    {"role": "user", "content": "x"},
    {"role": "assistant", "content": "", "tool_calls": [_CALL]},
]
PLAIN_RESULT = [{"role": "tool", "tool_call_id": "callabcde", "name": "add", "content": "38"}]
"""If the template refuses this one as well, the template is at fault and not what the policy sampled."""


class TokenTrack:
    """One rollout's ledger, with everything that writes it."""

    def __init__(
        self,
        spec: RolloutSpec,
        tokenizer: ChatTokenizer,
        tools: list[dict[str, Any]],
        kind: TrainerKind,
        agreement: Agreement | None = None,
        *,
        compares_tools: bool = False,
    ) -> None:
        """Tokens of a rollout that has none yet."""
        self.ledger = TokenLedger(tokenizer.fingerprint)
        self.kind = kind
        self._spec = spec
        self._tokenizer = tokenizer
        self.tools = tools
        """The definitions that the first prompt may show."""
        self._agreement = agreement or Agreement()
        self._compares_tools = compares_tools
        self._wrong_tools: tuple[str, ...] = ()
        """What the result is to say of the first prompt's tools."""
        self._uses: set[Use] = set()
        """The short cuts that made deltas of this rollout here."""
        self._resumed = False
        """Whether deltas were made elsewhere, by short cuts that no record names."""
        self._reads_tools: bool | None = None
        """Whether deltas depend on the tools; None before the first delta."""
        self.found_kind = TrainerKind.UNKNOWN
        """What echoes have shown. What a trainer says of itself it says to each rollout, before the first mask."""
        self._declared = False
        """Whether the trainer itself has said whether it keeps ids."""
        self._echoes = EchoVerifier(spec, tokenizer, self.ledger, tools)
        self._first: FirstPrompt | None = None
        self._echoed: tuple[EchoText, int] | None = None
        """The text of the last echo that was read, and how often the ledger had cut its context by then."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """Returns what the result is to say: of the first prompt's tools, and of deltas that may be wrong."""
        doubts, template = self._tokenizer.doubts, self._tokenizer.fingerprint.template_sha256
        doubted = doubts.concern(self._uses) or (self._resumed and doubts.of_template(template))
        return (*self._wrong_tools, *(["delta_doubted"] if doubted else []))

    # --- before a call ------------------------------------------------------------------------------------------

    async def plan_mask(self, messages: Sequence[dict[str, Any]], turn: int, *, edited: bool = False) -> MaskPlan:
        """Returns which mask lengths to try for a turn from 2 on."""
        spec = self._spec
        # An edited history in the ledger is our own render; the trainer's is longer by the offset.
        exact = len(self.ledger) + self._opened.offset if edited else self.ledger.pending_glue
        if spec.mask_mode is MaskMode.EXACT or (spec.mask_mode is MaskMode.AUTO and self.kind is TrainerKind.KEEPS_IDS):
            return MaskPlan((exact,), exact, None)
        # With an unknown trainer both lengths are guesses. One of them costs nothing, and after a 422 `replan` counts.
        unknown = self.kind is TrainerKind.UNKNOWN and spec.mask_mode is MaskMode.AUTO and not edited
        if unknown and (self._agreement.spares_count() or self._is_too_much(messages)):
            return MaskPlan((exact,), exact, None)
        parses = self.kind is TrainerKind.RERENDERS_PARSED
        rerender, parsed = None, None
        if parses:
            parsed = await self._count(messages, edited=edited, parsed=True)
        else:
            rerender = await self._count(messages, edited=edited)
            if (rerender is None or rerender < 0) and (spec.mask_mode is MaskMode.RERENDER or self.kind.renders_again):
                # No mask can say that, but the other form may have a length that one can.
                parsed = await self._count(messages, edited=edited, parsed=True)
        return masks.plan(spec.mask_mode, self.kind, exact, rerender, turn, parsed=parsed)

    def _is_too_much(self, messages: Sequence[dict[str, Any]]) -> bool:
        return size_of(list(messages[self._opened.counted() :]), at_most=MOST_COUNTED) > MOST_COUNTED

    async def _count(
        self, messages: Sequence[dict[str, Any]], *, edited: bool, parsed: bool = False, anew: bool = False
    ) -> int | None:
        """How many ids are new to a trainer that renders again; None where the template refuses the history."""
        first, length = self._opened, None
        if not edited and not anew:
            new = messages[first.counted(parsed=parsed) :]
            length = await off_loop(rendering_size(new), lambda: first.count_new(messages, parsed=parsed))
        if length is None:
            # A trainer's reply can have a long message and few ids, or many ids and a short message.
            size = len(self.ledger) + rendering_size(messages)
            length = await off_loop(size, lambda: first.count(messages, edited=edited, parsed=parsed))
        return None if length is None else length - self._known(edited)

    async def replan(self, messages: Sequence[dict[str, Any]], planned: PlannedTurn) -> MaskPlan:
        """Returns which further mask lengths to try, after the trainer has refused all of a plan's with 422."""
        plan, mode, edited = planned.plan, self._spec.mask_mode, planned.edited
        # Whoever keeps ids renders an edited history all the same, in either form.
        keeps = mode is MaskMode.AUTO and self.kind is TrainerKind.KEEPS_IDS and self._declared and not edited
        if mode is MaskMode.EXACT or keeps:
            return MaskPlan((), plan.exact, plan.rerender)
        self._agreement.differed()
        rerender = await self._count(messages, edited=edited, anew=True)
        parsed = await self._count(messages, edited=edited, parsed=True, anew=True)
        # A trainer that was taken to keep ids has given back ids that text would not have given.
        counts = (parsed, rerender) if self.kind is TrainerKind.KEEPS_IDS else (rerender, parsed)
        candidates = (*counts, plan.exact) if mode is MaskMode.AUTO else counts
        left = dict.fromkeys(n for n in candidates if n is not None and n >= 0 and n not in plan.lengths)
        return MaskPlan(tuple(left), plan.exact, rerender, parsed)

    def offer_prefix(self, turn: int, *, edited: bool) -> Echo | None:
        """Returns what the trainer may leave out of its echo; see `EchoVerifier.offer`."""
        return self._echoes.offer(turn, edited=edited)

    def known_echo(self) -> EchoText | None:
        """The text by which the next reply's prompt is known without reading it; None where the ledger has changed."""
        if self._echoed is None:
            return None
        text, cuts = self._echoed
        # An edit or a fork takes ids out of the context. Then the text says nothing of what is there now.
        return text if cuts == self.ledger.cuts else None

    def _known(self, edited: bool) -> int:
        """How many ids of the next prompt the trainer does not count as new."""
        return 0 if edited else self.ledger.head

    # --- after a call -------------------------------------------------------------------------------------------

    async def ingest_reply(
        self, reply: Reply, messages: Sequence[dict[str, Any]], asked: AskedTurn, *, train: bool
    ) -> VerifiedEcho:
        """Checks a reply against the ledger, appends what was sampled, and returns how the trainer's prompt differs."""
        verified = await (self._open(reply, messages) if asked.turn == 1 else self._follow(reply, asked, messages))
        # Last, because what the trainer says of itself counts more than what an echo has shown.
        if reply.keeps_ids is not None:
            self._declared = True
            if reply.keeps_ids:
                self.kind, self.found_kind = TrainerKind.KEEPS_IDS, TrainerKind.UNKNOWN
            elif not self.kind.renders_again:
                # In which form it does not say.
                self.kind = TrainerKind.RERENDERS
        self.ledger.append_sampled(
            reply.token_ids, reply.logprobs, turn=asked.turn, policy_version=reply.policy_version, train=train
        )
        return verified

    def resume(self, kind: TrainerKind, messages: Sequence[dict[str, Any]]) -> None:
        """Follows a journaled turn whose entries the ledger has absorbed."""
        self.kind, self._resumed = kind, True
        if self._first is None:
            # This is turn 1, so nothing has forked yet, and the first segment is the trainer's first prompt.
            self._first = self._first_prompt(messages, self.ledger.segments[0].n)

    async def _open(self, reply: Reply, messages: Sequence[dict[str, Any]]) -> VerifiedEcho:
        label, echo = await self._echoes.verify_first(reply, messages), reply.prompt_token_ids
        self._echoes.check_vocabulary("token_ids", reply.token_ids, 1)
        if self._compares_tools and echo is not None and len(echo) <= MOST_COMPARED:
            self._wrong_tools = await off_loop(len(echo), _compare_tools, self._spec, self._tokenizer, self.tools, echo)
        self._first = self._first_prompt(messages, None if echo is None else len(echo))
        self.ledger.seed(await self._render_first(messages) if echo is None else echo)
        self._remember(reply)
        return VerifiedEcho(label, None)

    async def _follow(self, reply: Reply, asked: AskedTurn, messages: Sequence[dict[str, Any]]) -> VerifiedEcho:
        verified, echo = await self._echoes.verify_later(reply, asked), reply.prompt_token_ids
        self._echoes.check_vocabulary("token_ids", reply.token_ids, asked.turn)
        if echo is None or verified.comparison is None:
            return verified
        plan, sent, skipped = asked.plan, asked.mask_length, reply.prefix + reply.repeated
        # A batch that names its mode wants that mask, whatever the echo says (docs/decisions/0001).
        if plan is not None and sent is not None and self._spec.mask_mode is not MaskMode.EXACT:
            new = skipped + len(echo) - self._known(asked.edited)
            forked = verified.comparison.kind is EchoKind.FORK and not asked.edited
            if forked and plan.rerender is None and self.kind is TrainerKind.UNKNOWN:
                # It was not counted (`Agreement`), and without it the two forms of rendering again look alike.
                plan = replace(plan, rerender=await self._count(messages, edited=False))
            if forked and new != plan.rerender and plan.parsed is None:
                plan = replace(plan, parsed=await self._count(messages, edited=False, parsed=True))
            # Both kinds of trainer render an edited history whole, so its echo tells nothing. Before the check, so that
            # other rollouts learn of a wrong guess even where this one ends by it.
            if not asked.edited:
                self._note_agreement(plan, verified.comparison.kind, new)
                self.kind = self.found_kind = masks.infer_kind(self.kind, plan, verified.comparison.kind, new)
            if self._spec.mask_mode is MaskMode.AUTO:
                try:
                    masks.check_accepted(plan, sent, new, asked.turn)
                except MaskDisproved as disproved:
                    raise proved(disproved, verified.difference) from None
        if self.kind is not TrainerKind.KEEPS_IDS:
            parses = self.kind is TrainerKind.RERENDERS_PARSED
            self._opened.report(messages, skipped + len(echo), parsed=parses)
        if verified.comparison.first_difference is not None:
            self.ledger.accept_echo(echo, prefix=skipped)
        self._remember(reply)
        return verified

    def _note_agreement(self, plan: MaskPlan, echo: EchoKind, new: int) -> None:
        """Notes whether a turn leaves it open what the trainer does with history."""
        if echo is not EchoKind.EQUAL or plan.rerender not in (None, plan.exact) or new != plan.exact:
            self._agreement.differed()
        elif plan.rerender is not None:
            self._agreement.agreed()

    def _remember(self, reply: Reply) -> None:
        """Keeps the text of an echo that the ledger has just accepted; nothing is sampled after it yet."""
        if reply.echo_text is not None and reply.echo_text.ids == len(self.ledger):
            self._echoed = reply.echo_text, self.ledger.cuts

    def _first_prompt(self, messages: Sequence[dict[str, Any]], echoed: int | None) -> FirstPrompt:
        return FirstPrompt(
            self._tokenizer, messages, echoed, tools=self.tools, template_kwargs=self._spec.template_kwargs
        )

    @property
    def _opened(self) -> FirstPrompt:
        if self._first is None:
            raise LedgerOrder("The first prompt is not known before the first reply.")
        return self._first

    def stop_of(self, reply: Reply) -> StopToken:
        """How the end of a turn shows in its ids."""
        if reply.token_ids and reply.token_ids[-1] in self._tokenizer.stop_ids:
            return StopToken.SAMPLED
        return StopToken.ABSENT if reply.finish_reason == "length" else StopToken.WITHHELD

    # --- new messages -------------------------------------------------------------------------------------------

    async def append(self, messages: list[dict[str, Any]], past: Sequence[dict[str, Any]], turn: int) -> None:
        """Renders what follows a sampled turn; replaces the earlier render of a prefix of these messages.

        `messages` are all after the policy's last one, because some templates merge them; `past` are those up to it.
        """
        if self._reads_tools is None:
            self._reads_tools = self._tokenizer.deltas_read_tools(self.tools, self._spec.template_kwargs)
        tools = await self._shown_tools() if self._reads_tools else None
        size = rendering_size(messages) + (rendering_size(past) if self._tokenizer.deltas_read_history else 0)
        if size > OFF_LOOP:
            delta = await asyncio.to_thread(self._render, messages, past, turn, tools)
        else:
            delta = self._render(messages, past, turn, tools)
        if delta.use is not None:
            self._uses.add(delta.use)
        if len(delta.glue_ids) > OFF_LOOP:
            await change_off_loop(len(delta.glue_ids), self._write_delta, delta, turn)
        else:
            self._write_delta(delta, turn)

    def _write_delta(self, delta: Delta, turn: int) -> None:
        # Messages after this turn were rendered before, and `delta` has them too. It replaces that render; appended, it
        # would say them twice.
        ledger = self.ledger
        if ledger.pending_glue:
            ledger.accept_echo([*delta.close_ids, *delta.glue_ids], prefix=ledger.head)
            return
        if delta.close_ids:
            ledger.append_close(delta.close_ids, turn=turn)
        ledger.append_glue(delta.glue_ids, turn=turn)

    def _render(
        self,
        messages: list[dict[str, Any]],
        past: Sequence[dict[str, Any]],
        turn: int,
        tools: list[dict[str, Any]] | None,
    ) -> Delta:
        sampled, kwargs = self.ledger.last_sampled(SAMPLED_TAIL), self._spec.template_kwargs
        try:
            return self._tokenizer.render_delta(
                messages, sampled=sampled, tools=tools, template_kwargs=kwargs, history=past
            )
        except WRITTEN_BY_OTHERS as refused:  # a user or a tool has, so the policy is not at fault
            raise TemplateUnusable(f"turn {turn}: {refused.message}") from None
        except TemplateRefused as refused:
            try:
                self._tokenizer.render_delta(
                    PLAIN_RESULT, sampled=sampled, tools=tools, template_kwargs=kwargs, history=PLAIN_CALL
                )
            except TemplateRefused:
                raise TemplateUnusable(f"turn {turn}: {refused.message}") from None
            # An ordinary tool result can be rendered, so it is what the policy sampled that can't be answered.
            raise TemplateRefusedTurn(f"turn {turn}: {refused.message}") from None

    async def count(self, messages: Sequence[dict[str, Any]]) -> int:
        """Counts the ids of a prompt of these messages, which shows all tools; nothing else changes."""
        tools, kwargs = self.tools or None, self._spec.template_kwargs
        ids = await off_loop(
            rendering_size(messages),
            lambda: self._tokenizer.render_prompt(messages, tools=tools, template_kwargs=kwargs),
        )
        return len(ids)

    async def replace(self, messages: Sequence[dict[str, Any]], turn: int) -> None:
        """Makes an edited history the context: a new sample, whose prompt is the whole of it."""
        self.ledger.accept_echo(await self._render_whole(messages, f"turn {turn}: the edited history"))

    async def _shown_tools(self) -> list[dict[str, Any]] | None:
        first = self._opened
        if not first.looked:
            # What is looked at is the first prompt, so its length decides, not that of the messages to render.
            await off_loop(rendering_size(first.messages), lambda: first.tools)
        return first.tools

    async def _render_first(self, messages: Sequence[dict[str, Any]]) -> list[int]:
        """Renders the first prompt, or finds it among those of other rollouts."""
        key = SHARED_PROMPTS.key(self._tokenizer, messages, await self._shown_tools(), self._spec.template_kwargs)
        ids = SHARED_PROMPTS.find(key)
        if ids is None:
            ids = await self._render_whole(messages, "turn 1: the prompt")
            SHARED_PROMPTS.keep(key, ids)
        return ids

    async def _render_whole(self, messages: Sequence[dict[str, Any]], what: str) -> list[int]:
        tools, kwargs = await self._shown_tools(), self._spec.template_kwargs
        try:
            return await off_loop(
                rendering_size(messages),
                lambda: self._tokenizer.render_prompt(messages, tools=tools, template_kwargs=kwargs),
            )
        except TemplateRefused as refused:
            raise TemplateUnusable(f"{what}: {refused.message}") from None


def _compare_tools(
    spec: RolloutSpec, tokenizer: ChatTokenizer, tools: list[dict[str, Any]], prompt_ids: Sequence[int]
) -> tuple[str, ...]:
    """Names the tools that the prompt shows and the batch does not allow, and the other way round, as warnings."""
    shown = find_shown_tools(tokenizer, prompt_ids, tools, spec.template_kwargs)
    allowed = shown.keys() if spec.tools is None else set(spec.tools)
    # Without a list of its own a batch allows all tools, also one whose task needs none of them.
    if spec.tools is None and not any(shown.values()):
        return ()
    wrong = [name for name, is_shown in shown.items() if is_shown != (name in allowed)]
    return tuple(f"{'tool_not_allowed' if shown[name] else 'tool_not_shown'}:{name}" for name in wrong)
