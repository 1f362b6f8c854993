"""What grading says of an attempt's ending."""

import pytest
from tests.support.claims import claim_of
from tests.unit.worker.rollout.test_decision import QUIET, result_with

from rolloutpool_common.capabilities.grading.errors import GraderFault
from rolloutpool_common.outcomes import RolloutStatus
from rolloutpool_worker.capabilities.grading.base import GraderAgain, GraderBusy, HeldForGroup
from rolloutpool_worker.capabilities.grading.opened import OpenGrading
from rolloutpool_worker.capability import Ending
from rolloutpool_worker.ending import Action, Decision, TicketOutcome
from rolloutpool_worker.rollout.decision import decide


@pytest.mark.parametrize(
    ("ending", "decision"),
    [
        (GraderBusy(), Decision(Action.DEFER, TicketOutcome.DEFERRED, delay_s=10.0)),
        (
            GraderAgain("it failed", 4.0),
            Decision(Action.DEFER, TicketOutcome.RETRIED, delay_s=4.0, counter="grade_retries"),
        ),
        (HeldForGroup(), Decision(Action.DROP, TicketOutcome.GRADING)),
        # A failure that may be retried: its grader's retries are over.
        (result_with(RolloutStatus.FAILED, GraderFault()), Decision(Action.FINISH, TicketOutcome.FAILED)),
        (result_with(RolloutStatus.COMPLETED), Decision(Action.FINISH, TicketOutcome.COMPLETED)),
    ],
    ids=["busy", "again", "held", "failed", "graded"],
)
def test_its_answers_hold(ending: Ending, decision: Decision) -> None:
    grading = OpenGrading.__new__(OpenGrading)
    assert decide(ending, claim_of(), QUIET, infra_retries=3, draining=False, capabilities=[grading]) == decision
