"""Says which `response_mask` a turn is asked with, and what the trainer's reply teaches about it.

The mask on the wire is a list of zeros, one for each prompt token that the trainer has not seen before. Two lengths can
be right, and they differ when a trainer that renders history again gets other ids than were sampled:

- `exact` is what the ledger adds after the last sampled id. A trainer that keeps sampled ids counts this.
- `rerender` is the length of the whole history, rendered again, without what the trainer had before: the last prompt
  and its sampled ids. A trainer that renders all messages again counts this.
- `parsed` is the same for a trainer that parses the arguments of calls before it renders, as vLLM does. Most templates
  write both forms alike, so it is counted only when it is needed: where the trainer is known to parse, where it refuses
  the other lengths, or where its prompt has another length than it accepted.

Mode `exact` or `rerender` sends that length. In mode `auto` the trainer's kind decides:

1. It keeps ids (it says so, or an echo has shown it): send `exact`, and render nothing.
2. It renders again: send `rerender`, or `parsed` where it is known to parse arguments. If that is negative, no mask can
   say it; then send `exact`. That is right if the trainer keeps ids after all: a kind is learned, and may be wrong. One
   that does render again refuses it, and the rollout ends with `MaskImpossible`.
3. Unknown and both are equal: send it; nothing can be learned from the reply.
4. Unknown and they differ: send `rerender` first. A trainer that keeps ids refuses it with 422; then send `exact`.
   If `rerender` is negative, or the template refuses the history, there is only `exact` to send.
5. Where the trainer refuses all of that, everything is counted anew, `parsed` too, and what was not tried is sent.
6. The echo must have as many new tokens as the mask that was accepted. If not, the trainer does not check masks, its
   session is wrong, and only the pool can notice: the rollout ends with `MaskDisproved`.

    had before    8 prompt ids and 2 sampled ones ("a", " b")
    next prompt   kept: 8 + 2 + 5 = 15 ids       rendered again: "a b" becomes one id, so 8 + 1 + 5 = 14
    the mask      exact: 15 - 10 = 5             rerender: 14 - 10 = 4

What an echo teaches holds for the other rollouts of this trainer (`trainer_kinds`).
"""

from rolloutpool_common.errors import MaskDisproved, MaskImpossible, TemplateRefusedTurn
from rolloutpool_common.protocol.journal import MaskPlan, TrainerKind
from rolloutpool_common.protocol.options import MaskMode
from rolloutpool_common.tokens.comparison import EchoKind


def plan(
    mode: MaskMode, kind: TrainerKind, exact: int, rerender: int | None, turn: int, *, parsed: int | None = None
) -> MaskPlan:
    """Returns what to send on a turn from 2 on, where the trainer may render history again."""
    if mode is MaskMode.RERENDER or kind.renders_again:
        counted = (parsed, rerender) if kind is TrainerKind.RERENDERS_PARSED else (rerender, parsed)
        found = [n for n in counted if n is not None]
        if not found:
            raise TemplateRefusedTurn(f"turn {turn}: the template cannot render the history again, so nothing to count")
        # A mask has no negative length. It happens where the render of a reply has fewer ids than were sampled.
        lengths = tuple(dict.fromkeys(n for n in found if n >= 0))
        if not lengths and mode is MaskMode.RERENDER:
            raise impossible(found[0], turn)
        if not lengths:
            return MaskPlan((exact,), exact, rerender, parsed)
        return MaskPlan(lengths, exact, rerender, parsed)
    if rerender is None or rerender < 0 or rerender == exact:
        return MaskPlan((exact,), exact, rerender)
    return MaskPlan((rerender, exact), exact, rerender)


def impossible(rerender: int, turn: int) -> MaskImpossible:
    """Makes the error for a rerender that has fewer tokens than were sampled."""
    return MaskImpossible(f"turn {turn}: {-rerender} tokens fewer: {MaskImpossible.__doc__}")


def infer_kind(kind: TrainerKind, plan: MaskPlan, echo: EchoKind, new: int) -> TrainerKind:
    """Infers the trainer's kind from an echo."""
    # Sampled ids have changed, and only a trainer that renders again changes them.
    if echo is EchoKind.FORK:
        as_text, parsed = plan.rerender == new, plan.parsed == new
        if parsed and not as_text:
            return TrainerKind.RERENDERS_PARSED
        if as_text and plan.parsed is not None and not parsed:
            return TrainerKind.RERENDERS
        return kind if kind.renders_again else TrainerKind.RERENDERS
    # An echo that differs only after the last sampled token tells nothing: either kind of trainer spells out control
    # tokens that a tool has typed.
    own = plan.parsed if kind is TrainerKind.RERENDERS_PARSED else plan.rerender
    if echo is EchoKind.EQUAL and own is not None and own != plan.exact:
        return TrainerKind.KEEPS_IDS
    return kind


def check_accepted(plan: MaskPlan, sent: int, new: int, turn: int) -> None:
    """Checks that a trainer's prompt has as many new tokens as the mask that it accepted."""
    if new != sent and new < 0 and new in (plan.rerender, plan.parsed):
        raise impossible(new, turn)
    if new != sent:
        mode = MaskMode.RERENDER if new in (plan.rerender, plan.parsed) and new >= 0 else MaskMode.EXACT
        raise MaskDisproved(
            f"turn {turn}: a mask of {sent} was accepted, but this trainer's prompt has {new} new tokens: it does not "
            f"check masks. mask_mode {mode} sends what it counts, or what is true, and holds it against no echo. (The "
            "reply to another request looks like that, too: rolloutpool doctor says whether yours name their requests)"
        )
