"""A rollout that its worker cannot run as it was submitted goes back to the queue, and says what it lacks."""

from dataclasses import replace
from typing import Any

import pytest
from tests.support.claims import claim_of

from rolloutpool_common.capabilities.grading.wire import GraderChoice
from rolloutpool_common.errors import EnvironmentFault, TrainerUnreachable
from rolloutpool_common.protocol.environments import EnvironmentChoice
from rolloutpool_common.protocol.waiting import WaitsFor
from rolloutpool_worker.environments import EnvironmentFull
from rolloutpool_worker.policy.breaker import TrainerDown
from rolloutpool_worker.rollout.deferral import NeedsMissing, lacks, note_deferral


def spec_of(**changes: Any) -> Any:
    return claim_of().spec.model_copy(update=changes)


@pytest.mark.parametrize(
    ("named", "shown"),
    [
        ({"environment": EnvironmentChoice(name="maze")}, "environment 'maze'"),
        ({"grader": GraderChoice(name="judge")}, "grader 'judge'"),
        ({"agent": "planner"}, "agent 'planner'"),
        ({"metadata": {"termination_strategy": "early"}}, "termination strategy 'early'"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else value,
)
def test_whatever_else_is_missing_is_named_with_its_kind(named: dict[str, Any], shown: str) -> None:
    missing = lacks(spec_of(**named), "w1")
    assert missing is not None
    assert missing.message.startswith(f"worker w1 has no {shown}; it has ")


class Waits:
    """What would be noted."""

    def __init__(self) -> None:
        self.said: list[tuple[Any, ...]] = []

    async def failed(self, error: Exception, tries: int, wait_s: float, *, port: bool = False) -> None:
        self.said.append((type(error), tries, wait_s, port))

    async def lacks(self, what: WaitsFor, message: str, wait_s: float) -> None:
        self.said.append((what, message, wait_s))


async def test_each_cause_is_noted_as_what_it_is() -> None:
    claim = replace(claim_of(), deferrals=4, spec=spec_of(environment=EnvironmentChoice(name="game")))
    waits = Waits()
    broken = EnvironmentFault("environment game: open failed").failure(turn=0)
    elsewhere = TrainerUnreachable("said already, at each try").failure(turn=0)
    for cause in (TrainerDown("refused"), NeedsMissing("no tool"), EnvironmentFull("secret"), broken, elsewhere):
        await note_deferral(waits, cause, claim, 10.0)  # type: ignore[arg-type]
    assert waits.said == [
        (TrainerDown, 5, 10.0, True),
        (WaitsFor.WORKER, "no tool", 10.0),
        (WaitsFor.ENVIRONMENT, "environment game has no room for another session", 10.0),
        (WaitsFor.ENVIRONMENT, "environment game: open failed", 10.0),
    ]
