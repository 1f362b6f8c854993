"""The decision table of `masks`: every mode, kind and pair of counts, and what an echo teaches."""

import pytest

from rolloutpool_common.errors import MaskDisproved, MaskImpossible, TemplateRefusedTurn
from rolloutpool_common.outcomes import FailureKind
from rolloutpool_common.protocol.journal import MaskPlan, TrainerKind
from rolloutpool_common.protocol.options import MaskMode
from rolloutpool_common.tokens.comparison import EchoKind
from rolloutpool_worker.conversation import mask_plan as masks

UNKNOWN, KEEPS, RERENDERS = TrainerKind.UNKNOWN, TrainerKind.KEEPS_IDS, TrainerKind.RERENDERS
PARSED = TrainerKind.RERENDERS_PARSED


@pytest.mark.parametrize(
    ("kind", "exact", "rerender", "lengths"),
    [
        (UNKNOWN, 20, 20, (20,)),
        (UNKNOWN, 20, 26, (26, 20)),
        (UNKNOWN, 20, 0, (0, 20)),
        (UNKNOWN, 20, -7, (20,)),
        (UNKNOWN, 20, None, (20,)),
        (UNKNOWN, 0, 0, (0,)),
        (RERENDERS, 20, 20, (20,)),
        (RERENDERS, 20, 26, (26,)),
        (RERENDERS, 20, 0, (0,)),
    ],
)
def test_auto(kind: TrainerKind, exact: int, rerender: int | None, lengths: tuple[int, ...]) -> None:
    assert masks.plan(MaskMode.AUTO, kind, exact, rerender, 2) == MaskPlan(lengths, exact, rerender)


@pytest.mark.parametrize("kind", TrainerKind)
@pytest.mark.parametrize("rerender", [0, 20, 26])
def test_rerender(kind: TrainerKind, rerender: int) -> None:
    assert masks.plan(MaskMode.RERENDER, kind, 20, rerender, 2) == MaskPlan((rerender,), 20, rerender)


def test_a_count_that_cannot_be_is_the_policy_s() -> None:
    with pytest.raises(MaskImpossible, match="turn 3: 7 tokens fewer") as negative:
        masks.plan(MaskMode.RERENDER, UNKNOWN, 20, -7, 3)
    with pytest.raises(TemplateRefusedTurn, match="turn 3") as refused:
        masks.plan(MaskMode.AUTO, RERENDERS, 20, None, 3)
    with pytest.raises(MaskImpossible, match="turn 3: 7 tokens fewer") as shown:
        masks.check_accepted(MaskPlan((20,), 20, -7), 20, -7, 3)
    for caught in (negative, refused, shown):
        assert caught.value.failure(3).kind is FailureKind.POLICY


@pytest.mark.parametrize("kind", [RERENDERS, PARSED])
def test_auto_sends_what_a_trainer_that_keeps_ids_counts_where_no_other_mask_can_be(kind: TrainerKind) -> None:
    plan = masks.plan(MaskMode.AUTO, kind, 20, -7, 3, parsed=-3)
    assert plan == MaskPlan((20,), 20, -7, -3)
    # Its echo then shows what it is.
    assert masks.infer_kind(kind, plan, EchoKind.EQUAL, 20) is KEEPS


@pytest.mark.parametrize(
    ("before", "rerender", "echo", "after"),
    [
        (UNKNOWN, 26, EchoKind.EQUAL, KEEPS),
        (UNKNOWN, 20, EchoKind.EQUAL, UNKNOWN),
        (UNKNOWN, None, EchoKind.EQUAL, UNKNOWN),
        (UNKNOWN, 26, EchoKind.TAIL, UNKNOWN),
        (UNKNOWN, 20, EchoKind.TAIL, UNKNOWN),
        (UNKNOWN, 26, EchoKind.FORK, RERENDERS),
        (UNKNOWN, 20, EchoKind.FORK, RERENDERS),
        (KEEPS, None, EchoKind.EQUAL, KEEPS),
        (KEEPS, None, EchoKind.FORK, RERENDERS),
        (RERENDERS, 20, EchoKind.EQUAL, RERENDERS),
    ],
)
def test_what_an_echo_teaches(before: TrainerKind, rerender: int | None, echo: EchoKind, after: TrainerKind) -> None:
    new = 20 if echo is EchoKind.EQUAL or rerender is None else rerender
    assert masks.infer_kind(before, MaskPlan((20,), 20, rerender), echo, new) is after


@pytest.mark.parametrize(
    ("before", "rerender", "parsed", "echo", "new", "after"),
    [
        (UNKNOWN, 26, 30, EchoKind.FORK, 30, PARSED),
        (UNKNOWN, 26, 30, EchoKind.FORK, 26, RERENDERS),
        (UNKNOWN, 26, 26, EchoKind.FORK, 26, RERENDERS),
        (UNKNOWN, 26, 30, EchoKind.FORK, 31, RERENDERS),
        (UNKNOWN, None, 30, EchoKind.FORK, 30, PARSED),
        (KEEPS, 26, 30, EchoKind.FORK, 30, PARSED),
        (RERENDERS, 26, 30, EchoKind.FORK, 30, PARSED),
        (PARSED, 26, 30, EchoKind.FORK, 26, RERENDERS),
        # What tells the two forms apart in neither way changes nothing.
        (PARSED, None, 30, EchoKind.FORK, 30, PARSED),
        (PARSED, 26, 26, EchoKind.FORK, 26, PARSED),
        (PARSED, None, 30, EchoKind.FORK, 31, PARSED),
        # Sampled ids came back, and this kind would have changed them.
        (PARSED, None, 30, EchoKind.EQUAL, 20, KEEPS),
        (PARSED, 20, 30, EchoKind.EQUAL, 20, KEEPS),
        (PARSED, 26, 20, EchoKind.EQUAL, 20, PARSED),
        (RERENDERS, 26, 20, EchoKind.EQUAL, 20, KEEPS),
        (RERENDERS, 20, 26, EchoKind.EQUAL, 20, RERENDERS),
    ],
)
def test_an_echo_tells_in_which_form_calls_are_rendered(
    before: TrainerKind, rerender: int | None, parsed: int | None, echo: EchoKind, new: int, after: TrainerKind
) -> None:
    assert masks.infer_kind(before, MaskPlan((new,), 20, rerender, parsed), echo, new) is after


@pytest.mark.parametrize(
    ("kind", "rerender", "parsed", "lengths"),
    [
        (PARSED, None, 30, (30,)),
        (PARSED, 26, 30, (30, 26)),
        (PARSED, 26, -1, (26,)),
        (RERENDERS, -7, 30, (30,)),
        (RERENDERS, None, 30, (30,)),
        (RERENDERS, 26, 26, (26,)),
        (UNKNOWN, 26, None, (26, 20)),
    ],
)
def test_the_form_that_is_known_comes_first(
    kind: TrainerKind, rerender: int | None, parsed: int | None, lengths: tuple[int, ...]
) -> None:
    plan = masks.plan(MaskMode.AUTO, kind, 20, rerender, 2, parsed=parsed)
    assert plan == MaskPlan(lengths, 20, rerender, parsed)


def test_a_mask_that_neither_form_can_say_is_impossible() -> None:
    with pytest.raises(MaskImpossible, match="3 tokens fewer"):
        masks.plan(MaskMode.RERENDER, PARSED, 20, -7, 2, parsed=-3)
    with pytest.raises(TemplateRefusedTurn):
        masks.plan(MaskMode.AUTO, PARSED, 20, None, 2)


def test_the_other_form_is_worth_the_advice_too() -> None:
    with pytest.raises(MaskDisproved, match="mask_mode rerender"):
        masks.check_accepted(MaskPlan((26,), 20, 26, 30), 26, 30, 2)


@pytest.mark.parametrize("plan", [MaskPlan((26, 20), 20, 26), MaskPlan((20,), 20, None), MaskPlan((20,), 20, -7)])
@pytest.mark.parametrize("new", [-8, 0, 20, 26, 27])
def test_an_accepted_mask_is_disproved_by_any_other_number(plan: MaskPlan, new: int) -> None:
    masks.check_accepted(plan, new, new, 2)
    with pytest.raises(MaskDisproved, match=f"has {new} new tokens") as caught:
        masks.check_accepted(plan, 40, new, 2)
    # Only a count that can be sent is worth the advice.
    assert ("mask_mode rerender" in caught.value.message) == (plan.rerender == new >= 0)
