"""The table of what becomes of a rollout when an attempt has ended: one row, one test."""

import asyncio
from dataclasses import replace

import pytest
from tests.support.claims import claim_of

from rolloutpool_common.errors import (
    AmbiguousTurn,
    InfraFault,
    PolicyFault,
    RequestFault,
    RolloutError,
    TrainerStatusError,
    TrainerUnreachable,
    WorkerFault,
)
from rolloutpool_common.outcomes import FinishReason, RolloutStatus
from rolloutpool_common.protocol.result import RolloutResult, Spans
from rolloutpool_common.store import Claim, ClaimLost, ClaimRefused, StoreUnavailable
from rolloutpool_worker.drain import Drained, SuspectCleared
from rolloutpool_worker.ending import Action, Decision, TicketOutcome
from rolloutpool_worker.environments import EnvironmentFull
from rolloutpool_worker.policy.breaker import TrainerDown
from rolloutpool_worker.rollout.decision import AttemptState, decide
from rolloutpool_worker.rollout.deferral import DEFERRED_SECONDS, NeedsMissing

QUIET = AttemptState(certain=True, calling=False)
CALLING = AttemptState(certain=True, calling=True)
UNCERTAIN = AttemptState(certain=False, calling=False)


def result_with(status: RolloutStatus, error: RolloutError | None = None) -> RolloutResult:
    return RolloutResult(
        uid="b-0",
        rollout_id="r",
        batch_id="b",
        index=0,
        status=status,
        finish_reason=FinishReason.ERROR if error else FinishReason.STOP,
        failure=None if error is None else error.failure(1),
        spans=Spans(),
    )


FINAL = AttemptState(certain=True, calling=False, final=True)


def decision_of(
    ending: RolloutResult | BaseException,
    state: AttemptState = QUIET,
    *,
    draining: bool = False,
    claim: Claim | None = None,
) -> Decision:
    return decide(ending, claim or claim_of(), state, infra_retries=3, draining=draining)


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (RolloutStatus.COMPLETED, None),
        (RolloutStatus.EXPIRED, None),
        (RolloutStatus.FAILED, PolicyFault()),
        (RolloutStatus.FAILED, RequestFault()),
        (RolloutStatus.FAILED, AmbiguousTurn()),
        (RolloutStatus.FAILED, TrainerStatusError(status=504)),
    ],
)
def test_a_result_is_finished(status: RolloutStatus, error: RolloutError | None) -> None:
    expected = Decision(Action.FINISH, TicketOutcome(status.value))
    assert decision_of(result_with(status, error)) == expected


@pytest.mark.parametrize(("retries", "delay_s"), [(0, 1.0), (1, 2.0), (2, 4.0)])
def test_a_retryable_infra_failure_is_requeued_with_growing_delays(retries: int, delay_s: float) -> None:
    failed = result_with(RolloutStatus.FAILED, InfraFault())
    expected = Decision(Action.REQUEUE, TicketOutcome.RETRIED, clean=False, delay_s=delay_s)
    assert decision_of(failed, UNCERTAIN, claim=claim_of(retries=retries)) == expected


@pytest.mark.parametrize(
    ("error", "calling", "clean"),
    [
        (WorkerFault(), True, False),
        (WorkerFault(), False, True),
        (TrainerStatusError(status=503), True, True),
        (TrainerUnreachable(), True, True),
    ],
)
def test_a_worker_that_fails_in_a_call_leaves_that_turn_in_doubt(
    error: RolloutError, calling: bool, clean: bool
) -> None:
    """The trainer may have sampled it; a 503 or a refused connection says that it has not."""
    decision = decision_of(result_with(RolloutStatus.FAILED, error), AttemptState(certain=True, calling=calling))
    assert (decision.action, decision.clean) == (Action.REQUEUE, clean)


@pytest.mark.parametrize("claim", [claim_of(retries=3), claim_of(v1=True)], ids=["no retries left", "protocol v1"])
def test_an_infra_failure_that_is_not_retried_is_finished(claim: Claim) -> None:
    failed = result_with(RolloutStatus.FAILED, InfraFault())
    assert decision_of(failed, claim=claim) == Decision(Action.FINISH, TicketOutcome.FAILED)


@pytest.mark.parametrize(("before", "delay_s"), [(0, 1.0), (1, 2.0), (3, 8.0), (4, 10.0), (60, 10.0)])
def test_a_port_that_is_down_defers_the_rollout_for_longer_and_longer(before: int, delay_s: float) -> None:
    expected = Decision(Action.DEFER, TicketOutcome.DEFERRED, delay_s=delay_s, counter="deferrals")
    # `calling` says nothing here: the breaker refused before anything was asked.
    assert decision_of(TrainerDown(), CALLING, claim=replace(claim_of(), deferrals=before)) == expected


@pytest.mark.parametrize(("state", "clean"), [(QUIET, True), (UNCERTAIN, False)])
def test_a_drain_releases_the_rollout_at_its_border(state: AttemptState, clean: bool) -> None:
    assert decision_of(Drained(), state, draining=True) == Decision(Action.RELEASE, TicketOutcome.DRAINED, clean)


@pytest.mark.parametrize(("state", "clean"), [(QUIET, True), (CALLING, False), (UNCERTAIN, False)])
def test_a_drain_that_cancels_releases_the_rollout_and_says_whether_a_call_was_in_flight(
    state: AttemptState, clean: bool
) -> None:
    ending = asyncio.CancelledError()
    expected = Decision(Action.RELEASE, TicketOutcome.DRAINED, clean, tried=int(state.calling))
    assert decision_of(ending, state, draining=True) == expected


def test_a_drain_renews_no_budget() -> None:
    tried = AttemptState(certain=True, calling=False, tried=3)
    assert decision_of(Drained(), tried, draining=True).tried == 3
    # The call that is cut off had no answer either.
    cut = AttemptState(certain=True, calling=True, tried=3)
    assert decision_of(asyncio.CancelledError(), cut, draining=True).tried == 4
    assert decision_of(SuspectCleared(), tried).tried == 0


def test_a_suspect_that_made_progress_is_released_without_a_drain() -> None:
    assert decision_of(SuspectCleared()) == Decision(Action.RELEASE, TicketOutcome.CLEARED)


@pytest.mark.parametrize(
    ("ending", "outcome"),
    [
        (asyncio.CancelledError(), TicketOutcome.STOPPED),
        (ClaimLost(), TicketOutcome.LOST),
        (StoreUnavailable(), TicketOutcome.STORE),
    ],
)
def test_nothing_is_written_by_a_worker_that_may_not_or_cannot(ending: BaseException, outcome: TicketOutcome) -> None:
    assert decision_of(ending) == Decision(Action.DROP, outcome)


def test_what_the_table_does_not_name_passes() -> None:
    with pytest.raises(ZeroDivisionError):
        decision_of(ZeroDivisionError())


@pytest.mark.parametrize("refusal", ClaimRefused)
def test_each_refusal_of_a_claim_is_an_outcome_of_its_ticket(refusal: ClaimRefused) -> None:
    assert TicketOutcome(refusal.value).value == refusal.value


def test_a_failure_is_final_where_the_session_is_lost_with_the_attempt() -> None:
    failed = result_with(RolloutStatus.FAILED, InfraFault())
    assert decision_of(failed).action is Action.REQUEUE
    assert decision_of(failed, FINAL) == Decision(Action.FINISH, TicketOutcome.FAILED)


@pytest.mark.parametrize("cause", [EnvironmentFull(), NeedsMissing()], ids=lambda cause: type(cause).__name__)
def test_what_has_no_room_or_lacks_a_tool_puts_the_rollout_off_and_nothing_is_in_doubt(cause: Exception) -> None:
    assert decision_of(cause) == Decision(Action.DEFER, TicketOutcome.DEFERRED, delay_s=DEFERRED_SECONDS)
    assert not decision_of(cause, UNCERTAIN).clean
    assert decision_of(cause).counter == "capacity"
