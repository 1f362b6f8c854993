"""Which of several answers is the strictest."""

import pytest

from rolloutpool_worker.ending import Action, Decision, TicketOutcome, strictest


@pytest.mark.parametrize(
    ("actions", "holds"),
    [
        ([Action.FINISH, Action.REQUEUE], Action.FINISH),
        ([Action.DEFER, Action.REQUEUE], Action.DEFER),
        ([Action.DEFER, Action.DROP, Action.FINISH], Action.DROP),
    ],
)
def test_what_ends_a_rollout_is_stricter_than_what_lets_it_go_on(actions: list[Action], holds: Action) -> None:
    assert strictest([Decision(action, TicketOutcome.RETRIED) for action in actions]).action is holds


def test_of_two_that_are_as_strict_the_first_holds() -> None:
    first, second = (Decision(Action.DEFER, TicketOutcome.RETRIED, delay_s=delay) for delay in (1.0, 2.0))
    assert strictest([first, second]) is first
